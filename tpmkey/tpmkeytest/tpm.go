package tpmkeytest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/better-compute/bcd/tpmkey/tpmkeytest/internal/wire"
)

// TPM is a software TPM for the length of one test.
type TPM struct {
	relay   *relay
	backend backend
}

// backend is a program that is a TPM.
type backend interface {
	// start runs the program; the TPM listens at the returned path. It is called once more after stop.
	start() (socket string, err error)
	// powerCycle restarts the TPM as a reboot of its machine does. It reports whether start must be called again.
	powerCycle(r *relay) (restart bool, err error)
	// stop ends the program.
	stop()
}

// Any returns a TPM of a kind that this machine has: [Swtpm], else [Simulator].
func Any(t testing.TB) *TPM {
	t.Helper()
	if _, err := findSwtpm(); err == nil {
		return Swtpm(t)
	}
	return Simulator(t)
}

// Unavailable skips the test because a TPM, or a program that works with one, cannot be had. It fails the test
// where the environment says that everything must be there.
func Unavailable(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("BCD_REQUIRE_TPM") == "1" {
		t.Fatalf("BCD_REQUIRE_TPM=1, but "+format, args...)
	}
	t.Skipf(format, args...)
}

// newTPM starts the backend and the relay in front of it. dir is short: a socket's path has at most 107 bytes.
func newTPM(t testing.TB, dir string, b backend) *TPM {
	t.Helper()
	socket, err := b.start()
	t.Cleanup(b.stop)
	if err != nil {
		Unavailable(t, "a TPM cannot be started: %v", err)
	}
	r, err := newRelay(filepath.Join(dir, "tpm"), socket)
	if err != nil {
		t.Fatalf("cannot relay to the TPM: %v", err)
	}
	t.Cleanup(r.close)
	return &TPM{relay: r, backend: b}
}

// shortDir is t.TempDir with a short path.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tpm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Device returns the TPM as [tpm] device names it: "unix:PATH".
func (m *TPM) Device() string { return "unix:" + m.relay.path }

// Do gives a test the TPM itself, for commands that the code under test does not send. They pass by [TPM.Intercept]
// and do not count in [TPM.Commands].
func (m *TPM) Do(t testing.TB, f func(transport.TPM)) {
	t.Helper()
	f(direct{m.relay})
}

// direct is the transport of [TPM.Do].
type direct struct{ relay *relay }

func (d direct) Send(command []byte) ([]byte, error) { return d.relay.exchange(command) }

// Commands returns the codes of the commands that clients sent, oldest first, and forgets them.
func (m *TPM) Commands() []tpm2.TPMCC { return m.relay.takeCommands() }

// Intercept has f decide what happens to each command of a client. Nil lets all of them pass.
func (m *TPM) Intercept(f func(tpm2.TPMCC) Action) { m.relay.intercept(f) }

// Handles returns the handles of the objects and sessions that are loaded.
func (m *TPM) Handles(t testing.TB) []tpm2.TPMHandle {
	t.Helper()
	var all []tpm2.TPMHandle
	m.Do(t, func(tpm transport.TPM) {
		// Transient objects, loaded sessions, saved sessions: TPM 2.0 Part 2, section 7.2.
		for _, first := range []uint32{0x80000000, 0x02000000, 0x03000000} {
			r, err := tpm2.GetCapability{Capability: tpm2.TPMCapHandles, Property: first, PropertyCount: 64}.Execute(tpm)
			if err != nil {
				t.Fatalf("cannot list the TPM's handles: %v", err)
			}
			listed, err := r.CapabilityData.Data.Handles()
			if err != nil {
				t.Fatalf("cannot list the TPM's handles: %v", err)
			}
			all = append(all, listed.Handle...)
		}
	})
	return all
}

// Clear does what an operator does by "clear the TPM" in a firmware's setup: TPM2_Clear. It gives the storage hierarchy
// a new seed, and keeps the endorsement hierarchy's.
func (m *TPM) Clear(t testing.TB) {
	t.Helper()
	m.Do(t, func(tpm transport.TPM) {
		_, err := tpm2.Clear{AuthHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHPlatform, Auth: tpm2.PasswordAuth(nil)}}.Execute(tpm)
		if err != nil {
			t.Fatalf("cannot clear the TPM: %v", err)
		}
	})
}

// SetOwnerAuth gives the owner hierarchy an authorisation value.
func (m *TPM) SetOwnerAuth(t testing.TB, auth []byte) {
	t.Helper()
	m.setAuth(t, tpm2.TPMRHOwner, auth)
}

// SetEndorsementAuth gives the endorsement hierarchy an authorisation value.
func (m *TPM) SetEndorsementAuth(t testing.TB, auth []byte) {
	t.Helper()
	m.setAuth(t, tpm2.TPMRHEndorsement, auth)
}

func (m *TPM) setAuth(t testing.TB, hierarchy tpm2.TPMHandle, auth []byte) {
	t.Helper()
	m.Do(t, func(tpm transport.TPM) {
		_, err := tpm2.HierarchyChangeAuth{
			AuthHandle: tpm2.AuthHandle{Handle: hierarchy, Auth: tpm2.PasswordAuth(nil)},
			NewAuth:    tpm2.TPM2BAuth{Buffer: auth},
		}.Execute(tpm)
		if err != nil {
			t.Fatalf("cannot set the authorisation of 0x%08x: %v", hierarchy, err)
		}
	})
}

// ReplaceEndorsementSeed does what a firmware update can do to a TPM that is firmware: its EK is another one then.
func (m *TPM) ReplaceEndorsementSeed(t testing.TB) {
	t.Helper()
	const changeEPS = 0x24 // TPM 2.0 Part 3, section 24.5
	m.asPlatform(t, changeEPS, nil)
}

// DisableEndorsement does what a firmware's setup can do: until the next [TPM.Reboot] the endorsement hierarchy is off.
func (m *TPM) DisableEndorsement(t testing.TB) {
	t.Helper()
	const hierarchyControl = 0x21 // TPM 2.0 Part 3, section 24.2
	m.asPlatform(t, hierarchyControl, []byte{0x40, 0, 0, 0x0b, 0})
}

// asPlatform sends a command that go-tpm lacks, 0x00000100 and code, with the platform's empty password.
func (m *TPM) asPlatform(t testing.TB, code byte, parameters []byte) {
	t.Helper()
	const password = "\x40\x00\x00\x0c" + "\x00\x00\x00\x09" + "\x40\x00\x00\x09" + "\x00\x00" + "\x00" + "\x00\x00"
	size := byte(10 + len(password) + len(parameters))
	command := append([]byte{0x80, 0x02, 0, 0, 0, size, 0, 0, 0x01, code}, password...)
	m.Do(t, func(tpm transport.TPM) {
		response, err := tpm.Send(append(command, parameters...))
		if err != nil || wire.Code(response) != 0 {
			t.Fatalf("the TPM answers the command 0x1%02x with %x, %v", code, response, err)
		}
	})
}

// Persist makes the primary key of a template under the owner hierarchy and keeps it at a persistent handle, as an
// operating system's installer does with the storage root key at 0x81000001.
func (m *TPM) Persist(t testing.TB, template tpm2.TPMTPublic, handle tpm2.TPMHandle) {
	t.Helper()
	m.PersistWithAuth(t, template, handle, nil)
}

// PersistWithAuth is [TPM.Persist] with an authorisation value of the key's own.
func (m *TPM) PersistWithAuth(t testing.TB, template tpm2.TPMTPublic, handle tpm2.TPMHandle, auth []byte) {
	t.Helper()
	owner := tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}
	m.Do(t, func(tpm transport.TPM) {
		made, err := tpm2.CreatePrimary{
			PrimaryHandle: owner,
			InPublic:      tpm2.New2B(template),
			InSensitive: tpm2.TPM2BSensitiveCreate{
				Sensitive: &tpm2.TPMSSensitiveCreate{UserAuth: tpm2.TPM2BAuth{Buffer: auth}},
			},
		}.Execute(tpm)
		if err != nil {
			t.Fatalf("cannot make a primary key: %v", err)
		}
		_, err = tpm2.EvictControl{
			Auth: owner, ObjectHandle: tpm2.NamedHandle{Handle: made.ObjectHandle, Name: made.Name}, PersistentHandle: handle,
		}.Execute(tpm)
		if err != nil {
			t.Errorf("cannot persist the key at 0x%08x: %v", handle, err)
		}
		if _, err := (tpm2.FlushContext{FlushHandle: made.ObjectHandle}).Execute(tpm); err != nil {
			t.Errorf("cannot flush the key: %v", err)
		}
	})
}

// Evict removes a persistent key.
func (m *TPM) Evict(t testing.TB, handle tpm2.TPMHandle) {
	t.Helper()
	m.Do(t, func(tpm transport.TPM) {
		read, err := tpm2.ReadPublic{ObjectHandle: handle}.Execute(tpm)
		if err != nil {
			t.Fatalf("cannot read the key at 0x%08x: %v", handle, err)
		}
		_, err = tpm2.EvictControl{
			Auth:             tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
			ObjectHandle:     tpm2.NamedHandle{Handle: handle, Name: read.Name},
			PersistentHandle: handle,
		}.Execute(tpm)
		if err != nil {
			t.Fatalf("cannot evict 0x%08x: %v", handle, err)
		}
	})
}

// Reboot restarts the TPM as a reboot of its machine does: loaded objects and sessions are gone.
func (m *TPM) Reboot(t testing.TB) {
	t.Helper()
	restart, err := m.backend.powerCycle(m.relay)
	if err != nil {
		t.Fatalf("cannot restart the TPM: %v", err)
	}
	if restart {
		socket, err := m.backend.start()
		if err != nil {
			t.Fatalf("cannot start the TPM again: %v", err)
		}
		if err := m.relay.reconnect(socket); err != nil {
			t.Fatalf("cannot reach the restarted TPM: %v", err)
		}
	}
}

// Remove makes the TPM unreachable: clients find no socket. Return brings it back.
func (m *TPM) Remove() { m.relay.unlisten() }

// Return undoes [TPM.Remove].
func (m *TPM) Return(t testing.TB) {
	t.Helper()
	if err := m.relay.listen(); err != nil {
		t.Fatalf("cannot bring the TPM back: %v", err)
	}
}

// Action is what becomes of a command.
type Action struct {
	kind  actionKind
	code  tpm2.TPMRC
	alter func([]byte)
}

type actionKind int

const (
	pass actionKind = iota
	fail
	hangUp
	ignore
)

// Pass gives the command to the TPM.
func Pass() Action { return Action{} }

// Fail answers with a response code and does not give the command to the TPM.
func Fail(code tpm2.TPMRC) Action { return Action{kind: fail, code: code} }

// Alter gives the command to the TPM and changes the response, as a bad bus does.
func Alter(change func(response []byte)) Action { return Action{alter: change} }

// HangUp closes the connection instead of an answer; the command does not reach the TPM.
func HangUp() Action { return Action{kind: hangUp} }

// Ignore never answers, as a wedged TPM does.
func Ignore() Action { return Action{kind: ignore} }
