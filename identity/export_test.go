package identity

// The parsers, for the fuzz tests.
var (
	ParseIdentity = parseIdentity
	ParsePending  = parsePending
	Encode        = encode
)

// MaxFile is the size of the largest state file.
const MaxFile = maxFile
