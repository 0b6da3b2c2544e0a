package fault

// Code names a kind of failure. The text is stable: it is printed in JSON and crosses the wire.
type Code string

// Codes that the daemon's own checks end with.
const (
	// Failed is any failure without a more exact code.
	Failed Code = "FAILED"
	// Usage is a wrong command line.
	Usage Code = "USAGE"
	// Config is a configuration that is missing, malformed or unsafe.
	Config Code = "CONFIG"
	// Token is a join token that is missing or malformed before anything was sent.
	Token Code = "TOKEN"
	// NotRoot is a command that needs root.
	NotRoot Code = "NOT_ROOT"
	// Unreachable is a peer that cannot be reached, or that does not answer in time.
	Unreachable Code = "UNREACHABLE"
	// Verification is an answer, a chain or a key that does not match what the configuration pins.
	Verification Code = "VERIFICATION_FAILED"
	// Pending is a join that waits for an operator's decision.
	Pending Code = "PENDING"
	// Busy is a data directory that another bcd holds.
	Busy Code = "BUSY"
	// NoSpace is a full disk or an exhausted quota.
	NoSpace Code = "NO_SPACE"
	// Unwritable is a data directory that cannot be written for another reason: read-only, wrong owner, wrong mode.
	Unwritable Code = "UNWRITABLE"
	// IdentityInvalid is an identity on disk that does not load.
	IdentityInvalid Code = "IDENTITY_INVALID"
	// NoIdentity is a machine that has not joined.
	NoIdentity Code = "NO_IDENTITY"
	// Newer is a state file or a database written by a newer version of the program.
	Newer Code = "NEWER_VERSION"
	// TPMUnavailable is a TPM that cannot be opened or does not answer now.
	TPMUnavailable Code = "TPM_UNAVAILABLE"
	// TPMUnusable is a TPM that bcd cannot use until somebody changes something: permissions, firmware, another chip.
	TPMUnusable Code = "TPM_UNUSABLE"
	// TPMKeyLost is a TPM that no longer loads the node's key.
	TPMKeyLost Code = "TPM_KEY_LOST"
	// TPMAuth is a TPM hierarchy whose authorisation is set and was not given.
	TPMAuth Code = "TPM_AUTH"
	// TPMLockout is a TPM in dictionary-attack lockout.
	TPMLockout Code = "TPM_LOCKOUT"
	// HardwareUnreadable is a hardware identifier that exists and may not be read.
	HardwareUnreadable Code = "HARDWARE_UNREADABLE"
	// TooLarge is a request that exceeds a limit of the protocol.
	TooLarge Code = "TOO_LARGE"
)

// Codes of the control plane. They cross the wire.
const (
	// AccessDenied is every refusal; its message never says why.
	AccessDenied Code = "ACCESS_DENIED"
	// InvalidConfig is a control plane without what the call needs, its JoinService keys for instance.
	InvalidConfig Code = "INVALID_CONFIG"
	// Conflict is a race that another caller won, or an idempotency key reused for something else.
	Conflict Code = "CONFLICT"
	// InvalidState is a call that the resource's state does not allow.
	InvalidState Code = "INVALID_STATE"
	// InvalidArgument is a request that does not follow the method's schema.
	InvalidArgument Code = "INVALID_ARGUMENT"
	// NotFound is a resource that does not exist, or that the caller may not know of.
	NotFound Code = "NOT_FOUND"
	// AlreadyExists is something that would be overwritten.
	AlreadyExists Code = "ALREADY_EXISTS"
	// Unauthenticated is a caller without a valid credential.
	Unauthenticated Code = "UNAUTHENTICATED"
	// RateLimited is a caller that must come back later.
	RateLimited Code = "RATE_LIMITED"
)

// Exit statuses of both programs (sysexits.h where it has a number).
const (
	ExitFailed       = 1
	ExitUsage        = 2
	ExitTemporary    = 75 // EX_TEMPFAIL
	ExitVerification = 76 // EX_PROTOCOL
	ExitRefused      = 77 // EX_NOPERM
	ExitConfig       = 78 // EX_CONFIG
)

// Exit returns the exit status of a command that ended with the code.
func (c Code) Exit() int {
	switch c {
	case Usage:
		return ExitUsage
	case Unreachable, Conflict, Pending, Busy, NoSpace, RateLimited, TPMUnavailable, TPMLockout:
		return ExitTemporary
	case Verification:
		return ExitVerification
	case AccessDenied, Unauthenticated, NotRoot:
		return ExitRefused
	case Config, NoIdentity:
		return ExitConfig
	default:
		return ExitFailed
	}
}

// Temporary reports whether the same call may succeed later with nothing changed by an operator.
func (c Code) Temporary() bool { return c.Exit() == ExitTemporary }

// Wire reports whether the code is one of the control plane's: those that cross the wire, and that its API documents.
func (c Code) Wire() bool {
	switch c {
	case AccessDenied, InvalidConfig, Conflict, InvalidState, InvalidArgument, NotFound, AlreadyExists, Unauthenticated, RateLimited:
		return true
	default:
		return false
	}
}
