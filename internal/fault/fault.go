// Package fault is the one error type of the project: a stable code, a hint, and a cause.
//
// A code is a contract: it decides the exit status, it is printed in JSON, and the codes that cross the wire do so as
// the reason of a google.rpc.ErrorInfo. A hint is one action for the reader and never repeats the cause. Errors that no
// caller branches on and no operator acts on stay plain fmt.Errorf values.
//
// What is lost at a process boundary: the wrapped cause. Code, message and hint survive it.
package fault

import (
	"errors"
	"fmt"
)

// Error is a failure that an operator meets.
type Error struct {
	// Code names the kind of failure. It is stable.
	Code Code
	// Hint says what to do next, as one action without a full stop. It may be empty.
	Hint string

	err error
}

// HintJoinAgain is the hint of every failure that only a new join ends.
const HintJoinAgain = `as root run "bcd join --reset --yes" with a token that was made with --allow-reclaim`

// New returns an error with a code and a hint. The message is formatted as by [fmt.Errorf], %w included.
func New(code Code, hint, format string, args ...any) error {
	return &Error{Code: code, Hint: hint, err: fmt.Errorf(format, args...)}
}

// Error returns the message: what failed and the cause, without the hint.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the causes that the message was formatted from.
func (e *Error) Unwrap() error { return e.err }

// CodeOf returns the code of the outermost [Error] in err's chain, [Failed] for any other error and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Failed
}

// HintOf returns the first hint that err's chain carries, or "".
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.err
	}
	return ""
}

// Is reports whether the code of err is code. It makes branching on a code read like errors.Is.
func Is(err error, code Code) bool { return CodeOf(err) == code }
