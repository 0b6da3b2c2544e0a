package session

// ConnectionCause is how the cause of a failed connection is told.
var ConnectionCause = connectionCause
