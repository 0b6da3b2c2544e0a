package tpmkey

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/internal/fault"
)

// What an operator can do, where several causes share it.
const (
	hintOpen          = "check that the TPM is enabled in the firmware's setup and that bcd may open the device"
	hintReboot        = "restart the machine, and update its firmware if that does not help"
	hintPower         = "power the machine off and on, and check that the TPM is enabled in the firmware's setup"
	hintWait          = "try again in a minute"
	hintStuck         = `try again in a few minutes, and restart the machine if "dmesg" shows errors of the TPM`
	hintNoP256        = `set [tpm] mode to "off": this TPM cannot hold a node's key`
	hintOwnerAuth     = "put the owner hierarchy's authorisation into a file with mode 0600 and name it in [tpm] owner_auth_file"
	hintHierarchy     = "enable the TPM's owner (storage) hierarchy in the firmware's setup"
	hintNoAttestation = "join with a join token instead: this TPM cannot prove where a key lives"
	hintOtherEK       = "name another endorsement key in [tpm] ek, by the NV index of its certificate"
	hintChallenge     = "try again; if it fails again, whoever runs the gateway between bcd and the control plane must look into it"
	hintNotInTPM      = `set [tpm] mode to "required", and join again so that the node's key is made in the TPM`
	hintCrowded       = "stop other programs that use the TPM directly, and try again"
)

// responseFault says what a response code means to an operator. The code decides whether it is temporary.
type responseFault struct {
	rc   tpm2.TPMRC
	code fault.Code
	hint string
}

// responseFaults is the one table of response codes (TPM 2.0 Part 2, section 6.6.3) that an operator can meet.
var responseFaults = []responseFault{
	{tpm2.TPMRCLockout, fault.TPMLockout, `wait for the lockout to end, or end it with "tpm2_dictionarylockout --clear-lockout"`},
	{tpm2.TPMRCBadAuth, fault.TPMAuth, hintOwnerAuth},
	{tpm2.TPMRCAuthFail, fault.TPMAuth, hintOwnerAuth},
	{tpm2.TPMRCAuthMissing, fault.TPMAuth, hintOwnerAuth},
	{tpm2.TPMRCAuthUnavailable, fault.TPMAuth, hintOwnerAuth},
	{tpm2.TPMRCHierarchy, fault.TPMUnusable, hintHierarchy},
	{tpm2.TPMRCInitialize, fault.TPMUnusable, hintPower},
	{tpm2.TPMRCFailure, fault.TPMUnusable, hintReboot},
	{tpm2.TPMRCReboot, fault.TPMUnusable, hintReboot},
	{tpm2.TPMRCNeedsTest, fault.TPMUnusable, hintReboot},
	{tpm2.TPMRCUpgrade, fault.TPMUnusable, "finish the TPM's firmware update, then restart the machine"},
	{tpm2.TPMRCDisabled, fault.TPMUnusable, hintPower},
	{tpm2.TPMRCCommandCode, fault.TPMUnusable, hintNoP256},
	{tpm2.TPMRCCurve, fault.TPMUnusable, hintNoP256},
	{tpm2.TPMRCAsymmetric, fault.TPMUnusable, hintNoP256},
	{tpm2.TPMRCIntegrity, fault.TPMKeyLost, fault.HintJoinAgain},
	{tpm2.TPMRCObjectMemory, fault.TPMUnavailable, hintCrowded},
	{tpm2.TPMRCSessionMemory, fault.TPMUnavailable, hintCrowded},
	{tpm2.TPMRCMemory, fault.TPMUnavailable, hintCrowded},
	{tpm2.TPMRCSessionHandles, fault.TPMUnavailable, hintCrowded},
	{tpm2.TPMRCContextGap, fault.TPMUnavailable, hintCrowded},
	{tpm2.TPMRCObjectHandles, fault.TPMUnusable, hintReboot},
	{tpm2.TPMRCNVUnavailable, fault.TPMUnavailable, hintWait},
	{tpm2.TPMRCNVRate, fault.TPMUnavailable, hintWait},
	{tpm2.TPMRCCanceled, fault.TPMUnavailable, hintWait},
	{tpm2.TPMRCRetry, fault.TPMUnavailable, hintWait},
	{tpm2.TPMRCYielded, fault.TPMUnavailable, hintWait},
	{tpm2.TPMRCTesting, fault.TPMUnavailable, hintWait},
}

// isNotNow reports whether the same command is to be sent again after a pause.
func isNotNow(rc tpm2.TPMRC) bool {
	return rc == tpm2.TPMRCRetry || rc == tpm2.TPMRCYielded || rc == tpm2.TPMRCTesting || rc == tpm2.TPMRCNVRate
}

// isFull reports whether the TPM has no room for another object or session.
func isFull(rc tpm2.TPMRC) bool {
	return slices.Contains([]tpm2.TPMRC{
		tpm2.TPMRCObjectMemory, tpm2.TPMRCSessionMemory, tpm2.TPMRCSessionHandles, tpm2.TPMRCMemory,
	}, rc)
}

// isUnsupported reports whether a TPM refused a key's kind: such a key cannot have wrapped anything in it.
func isUnsupported(err error) bool {
	return slices.ContainsFunc([]tpm2.TPMRC{
		tpm2.TPMRCAsymmetric, tpm2.TPMRCCurve, tpm2.TPMRCKeySize, tpm2.TPMRCSymmetric, tpm2.TPMRCType, tpm2.TPMRCValue, tpm2.TPMRCHash,
	}, func(rc tpm2.TPMRC) bool { return errors.Is(err, rc) })
}

// explain gives the failure of an operation the code and the hint of its cause.
func (l *link) explain(err error) error {
	if fault.CodeOf(err) != fault.Failed || l.ctx.Err() != nil && errors.Is(err, context.Cause(l.ctx)) {
		return err
	}
	var rc tpm2.TPMRC
	if errors.As(err, &rc) {
		for _, row := range responseFaults {
			if errors.Is(rc, row.rc) {
				return fault.New(row.code, row.hint, "%w%s", err, l.lockoutInterval(rc))
			}
		}
		return fault.New(fault.TPMUnusable, hintReboot, "the TPM refused a command: %w (code 0x%x)", err, uint32(rc))
	}
	if errors.Is(err, errTimeout) {
		return fault.New(fault.TPMUnavailable, hintStuck, "TPM %q: %w (%v)", l.dev.name, err, l.dev.timeout)
	}
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		row := openFaultOf(errno)
		return fault.New(row.code, row.hint, "TPM %q: %w", l.dev.name, errno)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fault.New(fault.TPMUnavailable, hintWait, "TPM %q closed the connection", l.dev.name)
	}
	return fault.New(fault.TPMUnavailable, hintStuck, "TPM %q: %w", l.dev.name, err)
}

// lockoutInterval tells of a locked-out TPM how long it takes to forgive one failure.
func (l *link) lockoutInterval(rc tpm2.TPMRC) string {
	if rc != tpm2.TPMRCLockout {
		return ""
	}
	read, err := tpm2.GetCapability{
		Capability: tpm2.TPMCapTPMProperties, Property: uint32(tpm2.TPMPTLockoutInterval), PropertyCount: 1,
	}.Execute(l)
	if err != nil {
		return "" // the lockout is the news
	}
	properties, err := read.CapabilityData.Data.TPMProperties()
	if err != nil || len(properties.TPMProperty) == 0 || properties.TPMProperty[0].Property != tpm2.TPMPTLockoutInterval {
		return ""
	}
	return fmt.Sprintf(" (it forgives one failure every %d s)", properties.TPMProperty[0].Value)
}

// openFault says what a system error of the device means to an operator.
type openFault struct {
	errno syscall.Errno
	code  fault.Code
	hint  string
}

// openFaults is the one table of system errors of the device.
var openFaults = []openFault{
	{syscall.ENOENT, fault.TPMUnavailable, "enable the TPM 2.0 in the firmware's setup, or start the software TPM"},
	{syscall.ENXIO, fault.TPMUnavailable, "enable the TPM 2.0 in the firmware's setup"},
	{syscall.ENODEV, fault.TPMUnavailable, "enable the TPM 2.0 in the firmware's setup"},
	{syscall.EACCES, fault.TPMUnusable, "run bcd as root"},
	{syscall.EPERM, fault.TPMUnusable, "allow the device in the container's or the unit's device list (DeviceAllow=" + DefaultDevice + " rw)"},
	{syscall.EBUSY, fault.TPMUnavailable, `stop the program that holds the TPM ("fuser -v /dev/tpm0" names it), or set [tpm] device to "` + DefaultDevice + `"`},
	{syscall.ECONNREFUSED, fault.TPMUnavailable, "start the software TPM that listens on this socket"},
	{syscall.EPIPE, fault.TPMUnavailable, "start the software TPM that listens on this socket"},
	{syscall.ECONNRESET, fault.TPMUnavailable, "start the software TPM that listens on this socket"},
	{syscall.EIO, fault.TPMUnavailable, hintReboot},
	{syscall.ETIME, fault.TPMUnavailable, hintStuck},
	{syscall.ETIMEDOUT, fault.TPMUnavailable, hintStuck},
}

func openFaultOf(errno syscall.Errno) openFault {
	for _, row := range openFaults {
		if row.errno == errno {
			return row
		}
	}
	return openFault{errno, fault.TPMUnavailable, hintOpen}
}
