package events

// MaxKinds is the bound of a limiter's memory.
const MaxKinds = maxKinds

// Kinds is how many kinds the limiter remembers.
func (l *Limiter) Kinds() int { return len(l.kinds) }
