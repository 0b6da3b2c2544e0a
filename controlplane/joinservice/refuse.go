package joinservice

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// errorDomain is the ErrorInfo domain of the codes.
const errorDomain = "better-compute"

// answerEvery is the grid, from a call's arrival on, on which refusals are answered: how long a check took does not show.
const answerEvery = 250 * time.Millisecond

// refusal is a check that failed. Its text never crosses the wire.
type refusal struct {
	reason string
	// tenant is who may be told; empty is the root tenant.
	tenant string
	// node and serial are a renewal's, once its leaf is known.
	node, serial string
}

// Error implements error.
func (r *refusal) Error() string { return "refused: " + r.reason }

// Refuse returns the error of a check that failed. The reason goes to the event stream as it is; the machine never sees it.
func Refuse(reason string) error { return &refusal{reason: reason} }

// tellTenant marks a refusal as one that the tenant may be told.
func tellTenant(err error, tenant string) error {
	var r *refusal
	if errors.As(err, &r) {
		r.tenant = tenant
	}
	return err
}

// The answers. Each is the same bytes for every reason.
var (
	errJoinRefused    = statusError(codes.PermissionDenied, fault.AccessDenied, "Join refused")
	errRenewRefused   = statusError(codes.PermissionDenied, fault.AccessDenied, "Renew refused")
	errSessionRefused = statusError(codes.PermissionDenied, fault.AccessDenied, "Session refused")
	errNoKeys         = statusError(codes.FailedPrecondition, fault.InvalidConfig, "JoinService has no keys")
	errConflict       = statusError(codes.Aborted, fault.Conflict, "This machine joined concurrently; retry")
	errRenewConflict  = statusError(codes.Aborted, fault.Conflict, "This certificate was renewed concurrently; retry")
	errProtocol       = statusError(codes.FailedPrecondition, fault.InvalidState, "The control plane speaks protocol 1")
	errUnavailable    = status.Error(codes.Unavailable, "The control plane is not available")
)

func statusError(c codes.Code, reason fault.Code, message string) error {
	s, err := status.New(c, message).WithDetails(&errdetails.ErrorInfo{Reason: string(reason), Domain: errorDomain})
	if err != nil {
		panic(err) // only a status OK has no details
	}
	return s.Err()
}

// answer ends a call that failed. A refusal is told to whoever may know it and answered on the grid; a status is passed
// on; anything else is our failure, which the log explains and the machine may try again.
func (s *Service) answer(ctx context.Context, arrived time.Time, err, refused error, tell func(*refusal)) error {
	var r *refusal
	if !errors.As(err, &r) {
		if _, ok := status.FromError(err); ok {
			return err
		}
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		s.log.ErrorContext(ctx, "answer failed", "error", err)
		return errUnavailable
	}
	tell(r)
	passed := max(0, s.now().Sub(arrived)) // a clock that was set back must not make the caller wait for it
	rounds := max(1, (passed+answerEvery-1)/answerEvery)
	if err := s.sleep(ctx, rounds*answerEvery-passed); err != nil {
		return status.FromContextError(err).Err()
	}
	return refused
}

// tellJoin publishes a refused join, if its kind is not over its limit.
func (s *Service) tellJoin(ctx context.Context, req *Request, r *refusal) {
	attestor := req.attestor()
	kind := events.Kind{Tenant: s.receiver(r), Attestor: attestor, Reason: r.reason}
	if _, known := s.attestors[attestor]; !known {
		// A caller's text must neither fill the memory nor escape the limit, and an event holds none of it.
		kind.Attestor, attestor = "", "unknown"
	}
	s.publish(ctx, kind, func(suppressed int64) events.Payload {
		e := events.JoinRefused{
			Attestor: attestor, Reason: r.reason, CSRSHA256: digestText(req.csrSHA256),
			HardwareKey: req.hardwareKey(), EKSHA256: req.ekSHA256, Suppressed: suppressed,
		}
		if slices.Contains([]string{store.RoleNode, store.RoleSite, store.RoleRamdisk}, req.Role()) {
			e.Role = req.Role()
		}
		return e
	})
}

// digestText is a digest as events spell it; that of nothing is empty.
func digestText(digest [sha256.Size]byte) string {
	if digest == ([sha256.Size]byte{}) {
		return ""
	}
	return hex.EncodeToString(digest[:])
}

func (s *Service) receiver(r *refusal) string {
	if r.tenant == "" {
		return s.rootTenant
	}
	return r.tenant
}

// publish writes the event of a refusal in a transaction of its own: the refused one wrote nothing. A caller that hangs
// up does not stop it.
func (s *Service) publish(ctx context.Context, k events.Kind, payload func(suppressed int64) events.Payload) {
	suppressed, ok := s.refusals.Allow(k, s.now())
	if !ok {
		return
	}
	err := s.store.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		return tx.Publish(k.Tenant, payload(suppressed))
	})
	if err != nil {
		s.log.ErrorContext(ctx, "publish refusal", "reason", k.Reason, "tenant", k.Tenant, "error", err)
	}
}
