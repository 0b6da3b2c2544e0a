package pki

// DefaultWorkFactor is what programs encrypt with.
const DefaultWorkFactor = defaultWorkFactor

func init() { workFactor = 10 }
