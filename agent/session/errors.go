package session

import (
	"errors"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/better-compute/bcd/internal/fault"
)

// domain is the ErrorInfo domain of the control plane's codes.
const domain = "better-compute"

// Refusal is an error that the control plane answered with. It is wrapped in a [fault.Error] of the same code.
type Refusal struct {
	// Code is the control plane's, such as ACCESS_DENIED.
	Code fault.Code
	// Message is the control plane's, as it is.
	Message string
	// RetryAfter is how long to wait at least; zero when the control plane did not say.
	RetryAfter time.Duration
}

// Error returns the message and the code, as the control plane gave them.
func (r *Refusal) Error() string { return r.Message + " (" + string(r.Code) + ")" }

// RetryAfter returns how long the control plane asked to wait before another call, zero when it did not ask.
func RetryAfter(err error) time.Duration {
	var r *Refusal
	if errors.As(err, &r) {
		return r.RetryAfter
	}
	return 0
}

// callError turns a gRPC error into one with a code. tlsErr is what the connection remembers, if anything.
func callError(err, tlsErr error, address string) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	refusal := &Refusal{Message: s.Message()}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == domain {
				refusal.Code = fault.Code(d.GetReason())
			}
		case *errdetails.RetryInfo:
			refusal.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	switch {
	case s.Code() == codes.ResourceExhausted:
		refusal.Code = fault.RateLimited
		return fault.New(fault.RateLimited, "wait, then try again", "%w", refusal)
	case refusal.Code != "":
		return fault.New(refusal.Code, refusalHint(refusal.Code), "%w", refusal)
	}
	switch s.Code() {
	case codes.Unavailable:
		if tlsErr != nil {
			return tlsErr
		}
		return fault.New(fault.Unreachable, hintReach, "cannot reach the gateway at %s: %s", address, connectionCause(s.Message()))
	case codes.DeadlineExceeded:
		if tlsErr != nil {
			return tlsErr
		}
		return fault.New(fault.Unreachable, hintReach, "the gateway at %s did not answer in time", address)
	case codes.Canceled:
		return err
	default:
		return fault.New(fault.Failed, "look at the gateway's log; the versions of gateway and bcd may not fit", "the gateway answered %s: %s", s.Code(), s.Message())
	}
}

// refusalHint says what to do about a code of the control plane. A refusal never says why: only the operator can see it.
func refusalHint(code fault.Code) string {
	switch code {
	case fault.AccessDenied:
		return "read the control plane's security events for the reason: better-compute events list"
	case fault.InvalidConfig:
		return "the control plane has no JoinService keys; its operator must configure them"
	case fault.Conflict:
		return "try again in a few seconds"
	default:
		return "look at the control plane's log"
	}
}

// connectionCause cuts gRPC's wrapping off a connection's error.
func connectionCause(message string) string {
	for _, wrapping := range []string{"connection error: desc = ", "transport: Error while dialing: ", "transport: authentication handshake failed: ", "error reading server preface: "} {
		if _, rest, found := strings.Cut(message, wrapping); found {
			message = strings.Trim(rest, `"`)
		}
	}
	return message
}
