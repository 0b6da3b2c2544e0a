package session

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
)

// domain is the ErrorInfo domain of the control plane's codes.
const domain = "better-compute"

// What a gateway says is shown to people and kept in logs, and how long it wants to be left alone is honoured, within
// bounds: it must be able neither to fill a disk nor to send a node away for good.
const (
	// MaxPause is the longest that a node stays away because it was asked to.
	MaxPause = 10 * time.Minute
	// maxWord bounds a word: a session's id, the reason of a goodbye. In bytes.
	maxWord = 64
	// maxMessage bounds the message of an error, in bytes.
	maxMessage = 512
)

func pause(asked time.Duration) time.Duration { return min(max(asked, 0), MaxPause) }

// Refusal is an error that the control plane answered with. It is wrapped in a [fault.Error] of the same code.
type Refusal struct {
	// Code is the control plane's, such as ACCESS_DENIED.
	Code fault.Code
	// Message is the control plane's, safe to print.
	Message string
	// RetryAfter is how long to wait at least; zero when the control plane did not say, [MaxPause] at most.
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
	refusal := &Refusal{Message: oneline.Bounded(s.Message(), maxMessage)}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			// Any other code is not the control plane's to give: the daemon's own decide exit statuses.
			if code := fault.Code(d.GetReason()); d.GetDomain() == domain && code.Wire() {
				refusal.Code = code
			}
		case *errdetails.RetryInfo:
			refusal.RetryAfter = pause(d.GetRetryDelay().AsDuration())
		}
	}
	switch {
	// Without a RetryInfo it is another resource, such as this side's limit of a message's size.
	case s.Code() == codes.ResourceExhausted && refusal.RetryAfter > 0:
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
		return fault.New(fault.Unreachable, hintReach, "cannot reach the gateway at %s: %s", address, oneline.Bounded(connectionCause(s.Message()), maxMessage))
	case codes.DeadlineExceeded:
		if tlsErr != nil {
			return tlsErr
		}
		return fault.New(fault.Unreachable, hintReach, "the gateway at %s did not answer in time", address)
	case codes.Canceled:
		return err
	default:
		return fault.New(fault.Failed, "look at the gateway's log; the versions of gateway and bcd may not fit", "the gateway answered %s: %s", s.Code(), refusal.Message)
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
			message = rest
			if bare, err := strconv.Unquote(rest); err == nil {
				message = bare
			}
		}
	}
	if _, response, found := strings.Cut(message, "failed to do connect handshake, response: "); found {
		bare, err := strconv.Unquote(response)
		if err != nil {
			bare = response
		}
		line, _, _ := strings.Cut(bare, "\r\n")
		return "the proxy that HTTPS_PROXY names does not connect to it: " + line
	}
	switch {
	case strings.HasPrefix(message, "name resolver error: produced zero addresses"):
		return "its name does not resolve to an address"
	case strings.HasSuffix(message, "use of closed network connection"): // by gRPC, when its patience ends
		return "it did not answer in time"
	}
	return message
}
