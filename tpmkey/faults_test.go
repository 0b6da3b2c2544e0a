package tpmkey_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// The numbers are those of the specification (TPM 2.0 Part 2, section 6.6.3), not the library's names for them.
func TestResponseCodes(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	s.SetPause(func(context.Context, time.Duration) error { return nil })
	_, key := newKey(t, s)
	for _, test := range []struct {
		code      tpm2.TPMRC
		want      fault.Code
		temporary bool
		text      string
	}{
		{0x921, fault.TPMLockout, true, "TPM_RC_LOCKOUT"},
		{0x9a2, fault.TPMAuth, false, "TPM_RC_BAD_AUTH"},
		{0x98e, fault.TPMAuth, false, "TPM_RC_AUTH_FAIL"},
		{0x125, fault.TPMAuth, false, "TPM_RC_AUTH_MISSING"},
		{0x12f, fault.TPMAuth, false, "TPM_RC_AUTH_UNAVAILABLE"},
		{0x185, fault.TPMUnusable, false, "TPM_RC_HIERARCHY"},
		{0x100, fault.TPMUnusable, false, "TPM_RC_INITIALIZE"},
		{0x101, fault.TPMUnusable, false, "TPM_RC_FAILURE"},
		{0x130, fault.TPMUnusable, false, "TPM_RC_REBOOT"},
		{0x12d, fault.TPMUnusable, false, "TPM_RC_UPGRADE"},
		{0x120, fault.TPMUnusable, false, "TPM_RC_DISABLED"},
		{0x153, fault.TPMUnusable, false, "TPM_RC_NEEDS_TEST"},
		{0x143, fault.TPMUnusable, false, "TPM_RC_COMMAND_CODE"},
		{0xb0143, fault.TPMUnusable, false, "TPM_RC_COMMAND_CODE"}, // from the kernel's resource manager
		{0x128, fault.TPMUnusable, false, "TPM_RC_PCR_CHANGED"},    // in no row: not to be taken for REBOOT
		{0x906, fault.TPMUnusable, false, "TPM_RC_OBJECT_HANDLES"},
		{0x901, fault.TPMUnavailable, true, "TPM_RC_CONTEXT_GAP"},
		{0x902, fault.TPMUnavailable, true, "TPM_RC_OBJECT_MEMORY"},
		{0x903, fault.TPMUnavailable, true, "TPM_RC_SESSION_MEMORY"},
		{0x904, fault.TPMUnavailable, true, "TPM_RC_MEMORY"},
		{0x905, fault.TPMUnavailable, true, "TPM_RC_SESSION_HANDLES"},
		{0x908, fault.TPMUnavailable, true, "TPM_RC_YIELDED"},
		{0x909, fault.TPMUnavailable, true, "TPM_RC_CANCELED"},
		{0x90a, fault.TPMUnavailable, true, "TPM_RC_TESTING"},
		{0x920, fault.TPMUnavailable, true, "TPM_RC_NV_RATE"},
		{0x922, fault.TPMUnavailable, true, "TPM_RC_RETRY"},
		{0x923, fault.TPMUnavailable, true, "TPM_RC_NV_UNAVAILABLE"},
	} {
		t.Run(test.text, func(t *testing.T) {
			tpm.Intercept(func(tpm2.TPMCC) tpmkeytest.Action { return tpmkeytest.Fail(test.code) })
			defer tpm.Intercept(nil)
			_, _, newErr := s.New(t.Context())
			for _, err := range []error{newErr, sign(key)} {
				wantFault(t, err, test.want, test.text)
				if got := fault.CodeOf(err).Temporary(); got != test.temporary {
					t.Errorf("%v: temporary is %v", err, got)
				}
				if strings.Count(err.Error(), test.text) != 1 {
					t.Errorf("%v: says it more than once", err)
				}
			}
		})
	}
	if err := sign(key); err != nil {
		t.Errorf("the TPM works again, but: %v", err)
	}
}

func TestACurveThatTheTPMLacks(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	for name, action := range map[string]struct {
		command tpm2.TPMCC
		action  tpmkeytest.Action
	}{
		// The one curve of the answer becomes P-384 (0x0004).
		"not listed":         {tpm2.TPMCCGetCapability, tpmkeytest.Alter(func(r []byte) { r[len(r)-2], r[len(r)-1] = 0, 4 })},
		"refused for Create": {tpm2.TPMCCCreate, tpmkeytest.Fail(0x2e6)}, // TPM_RC_CURVE, parameter 2
	} {
		t.Run(name, func(t *testing.T) {
			tpm.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
				if command == action.command {
					return action.action
				}
				return tpmkeytest.Pass()
			})
			defer tpm.Intercept(nil)
			_, _, err := storeOn(t, tpm).New(t.Context())
			wantFault(t, err, fault.TPMUnusable)
			if got := fault.HintOf(err); !strings.Contains(got, "this TPM cannot hold a node's key") {
				t.Errorf("hint %q", got)
			}
			noLeaks(t, tpm)
			record, _ := newKey(t, newStore(t, tpmkey.Options{Device: tpm.Device()})) // auto
			if d, err := tpmkey.Describe(record); err != nil || d.Kind != tpmkey.KindFile {
				t.Errorf("mode auto: %+v, %v", d, err)
			}
		})
	}
}

func TestALockoutTellsItsInterval(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	_, key := newKey(t, storeOn(t, tpm))
	tpm.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
		if command == tpm2.TPMCCLoad {
			return tpmkeytest.Fail(tpm2.TPMRCLockout)
		}
		return tpmkeytest.Pass()
	})
	wantFault(t, sign(key), fault.TPMLockout, "(it forgives one failure every 1000 s)") // libtpms's default
	noLeaks(t, tpm)
}

func TestNotNowIsRetriedWithinABound(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	var pauses []time.Duration
	s.SetPause(func(_ context.Context, d time.Duration) error {
		pauses = append(pauses, d)
		return nil
	})
	_, key := newKey(t, s)
	if len(pauses) > 0 {
		t.Fatalf("paused without a reason: %v", pauses)
	}
	for _, code := range []tpm2.TPMRC{tpm2.TPMRCRetry, tpm2.TPMRCYielded, tpm2.TPMRCTesting, tpm2.TPMRCNVRate} {
		pauses = nil
		n := 0
		tpm.Intercept(func(tpm2.TPMCC) tpmkeytest.Action {
			if n++; n <= 3 {
				return tpmkeytest.Fail(code)
			}
			return tpmkeytest.Pass()
		})
		if err := sign(key); err != nil {
			t.Errorf("%v: %v", code, err)
		}
		if want := []time.Duration{20e6, 40e6, 80e6}; !slices.Equal(pauses, want) {
			t.Errorf("%v: paused %v, want %v", code, pauses, want)
		}
	}

	pauses = nil
	tpm.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
		if command == tpm2.TPMCCLoad {
			return tpmkeytest.Fail(tpm2.TPMRCRetry)
		}
		return tpmkeytest.Pass()
	})
	err := sign(key)
	wantFault(t, err, fault.TPMUnavailable, "TPM_RC_RETRY")
	var total time.Duration
	for _, d := range pauses {
		total += d
	}
	// Two storage keys are tried.
	if total < 2*tpmkey.PauseBudget || total > 2*tpmkey.PauseBudget+8*time.Second {
		t.Errorf("paused %v in all", total)
	}
	noLeaks(t, tpm)
}

func TestCancellingEndsTheRetries(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("shutting down")
	tpm.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
		if command == tpm2.TPMCCCreate {
			cancel(cause)
			return tpmkeytest.Fail(tpm2.TPMRCRetry)
		}
		return tpmkeytest.Pass()
	})
	if _, _, err := s.New(ctx); !errors.Is(err, cause) {
		t.Errorf("%v, want the cause of the cancellation", err)
	}
	tpm.Intercept(nil)
	noLeaks(t, tpm)
}

func TestATPMThatNeverAnswersIsGivenUp(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := newStore(t, tpmkey.Options{Mode: tpmkey.Required, Device: tpm.Device(), Timeout: 500 * time.Millisecond})
	_, key := newKey(t, s)
	tpm.Intercept(func(tpm2.TPMCC) tpmkeytest.Action { return tpmkeytest.Ignore() })
	wantFault(t, sign(key), fault.TPMUnavailable, "did not answer in time (500ms)")
	tpm.Intercept(nil)
	if err := sign(key); err != nil {
		t.Errorf("the TPM answers again, but: %v", err)
	}
}

// wedged is a device whose driver holds a command whatever happens to the descriptor.
type wedged struct{ release chan struct{} }

func (w wedged) Write(p []byte) (int, error) { return len(p), nil }
func (w wedged) Read([]byte) (int, error)    { <-w.release; return 0, io.EOF }
func (w wedged) Close() error                { return nil }

func TestACommandThatTheKernelHoldsBlocksNoMoreThreads(t *testing.T) {
	s := newStore(t, tpmkey.Options{Mode: tpmkey.Required, Timeout: 20 * time.Millisecond})
	device := wedged{make(chan struct{})}
	connected := 0
	s.SetConnect(func(context.Context) (io.ReadWriteCloser, error) {
		connected++
		return device, nil
	})
	_, _, err := s.New(t.Context())
	wantFault(t, err, fault.TPMUnavailable, "did not answer in time")
	_, _, err = s.New(t.Context())
	wantFault(t, err, fault.TPMUnavailable, "still holds a command")
	if connected != 1 {
		t.Errorf("opened the device %d times, want once", connected)
	}
	close(device.release)
	for deadline := time.Now().Add(10 * time.Second); connected < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the device is not opened again")
		}
		_, _, err = s.New(t.Context())
	}
	wantFault(t, err, fault.TPMUnavailable, "closed the connection")
}

// Signatures have no context: those that a stuck TPM keeps waiting give up, instead of queueing for ever.
func TestWaitingForTheTurnHasABound(t *testing.T) {
	s := newStore(t, tpmkey.Options{Mode: tpmkey.Required, Timeout: 50 * time.Millisecond})
	release, entered := make(chan struct{}), make(chan struct{})
	s.SetConnect(func(context.Context) (io.ReadWriteCloser, error) {
		close(entered)
		<-release
		return nil, errors.New("released")
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = s.New(t.Context())
	}()
	<-entered
	_, _, err := s.New(t.Context())
	wantFault(t, err, fault.TPMUnavailable, "is busy with earlier operations")
	close(release)
	<-done
}

func TestWaitingForTheTurnEndsWithTheContext(t *testing.T) {
	s := newStore(t, tpmkey.Options{Mode: tpmkey.Required, Timeout: 10 * time.Second})
	device := wedged{make(chan struct{})}
	entered := make(chan struct{})
	s.SetConnect(func(context.Context) (io.ReadWriteCloser, error) {
		close(entered)
		return device, nil
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = s.New(t.Context()) // ends with the device's end of file
	}()
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, _, err := s.New(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	close(device.release)
	<-done
}

func TestResponsesThatAreNoResponses(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	_, key := newKey(t, storeOn(t, tpm))
	for name, action := range map[string]tpmkeytest.Action{
		"hang-up":          tpmkeytest.HangUp(),
		"says too much":    tpmkeytest.Alter(func(r []byte) { r[2] = 0xff }),
		"says too little":  tpmkeytest.Alter(func(r []byte) { r[5] = 9; r[4] = 0 }),
		"says less":        tpmkeytest.Alter(func(r []byte) { r[5]-- }),
		"other parameters": tpmkeytest.Alter(func(r []byte) { clear(r[10:]) }),
	} {
		t.Run(name, func(t *testing.T) {
			tpm.Intercept(func(tpm2.TPMCC) tpmkeytest.Action { return action })
			defer tpm.Intercept(nil)
			if err := sign(key); err == nil {
				t.Error("signed")
			} else if !fault.CodeOf(err).Temporary() && fault.CodeOf(err) != fault.TPMUnusable {
				t.Errorf("%v: code %q", err, fault.CodeOf(err))
			}
		})
	}
	if err := sign(key); err != nil {
		t.Error(err)
	}
}

func TestAResponseMayComeInParts(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	s.SetConnect(func(ctx context.Context) (io.ReadWriteCloser, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(tpm.Device(), "unix:"))
		if err != nil {
			return nil, err
		}
		return struct {
			io.Reader
			io.WriteCloser
		}{iotest.OneByteReader(conn), conn}, nil
	})
	_, key := newKey(t, s)
	if err := sign(key); err != nil {
		t.Error(err)
	}
}

func TestErrorsOfOpeningTheDevice(t *testing.T) {
	dir := t.TempDir()
	rm, raw := filepath.Join(dir, "tpmrm0"), filepath.Join(dir, "tpm0")
	version := filepath.Join(dir, "class/tpm/tpm0/tpm_version_major")
	write := func(path, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	required := func(device string) *tpmkey.Store {
		s := newStore(t, tpmkey.Options{Mode: tpmkey.Required, Device: device})
		s.SetSysfs(dir)
		return s
	}
	newErr := func(s *tpmkey.Store) error {
		_, _, err := s.New(t.Context())
		return err
	}
	wantFault(t, newErr(required(rm)), fault.TPMUnavailable, rm, "no such file", "the kernel shows no TPM")
	write(raw, "")
	wantFault(t, newErr(required(rm)), fault.TPMUnavailable, "there is a tpm0 without a resource manager")
	write(version, "1\n")
	wantFault(t, newErr(required(rm)), fault.TPMUnavailable, "tpm0 is a TPM 1.2; bcd needs a TPM 2.0")
	write(rm, "")
	wantFault(t, newErr(required(rm)), fault.Config, rm, "is not a TPM device")

	socket := filepath.Join(dir, "socket")
	wantFault(t, newErr(required("unix:"+socket)), fault.TPMUnavailable, "no such file")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: socket}); err != nil {
		t.Fatal(err)
	}
	wantFault(t, newErr(required("unix:"+socket)), fault.TPMUnavailable, "connection refused") // nobody listens

	for _, test := range []struct {
		errno     syscall.Errno
		want      fault.Code
		text      string
		inHint    string
		temporary bool
	}{
		{syscall.EACCES, fault.TPMUnusable, ", mode 0600)", "as root", false},
		{syscall.EPERM, fault.TPMUnusable, "not permitted", "DeviceAllow=/dev/tpmrm0", false},
		{syscall.EBUSY, fault.TPMUnavailable, "busy", "fuser", true},
		{syscall.ENODEV, fault.TPMUnavailable, "no such device", "firmware", true},
		{syscall.ENXIO, fault.TPMUnavailable, "no such device", "firmware", true},
		{syscall.EIO, fault.TPMUnavailable, "input/output", "restart the machine", true},
		{syscall.ETIME, fault.TPMUnavailable, "timer expired", "dmesg", true},
		{syscall.EMFILE, fault.TPMUnavailable, "too many open files", "device", true},
	} {
		err := required(rm).ExplainOpen(test.errno)
		wantFault(t, err, test.want, rm, test.text)
		if !errors.Is(err, test.errno) {
			t.Errorf("%v: the cause is lost", err)
		}
		if got := fault.HintOf(err); !strings.Contains(got, test.inHint) {
			t.Errorf("%v: hint %q does not say %q", err, got, test.inHint)
		}
		if got := fault.CodeOf(err).Temporary(); got != test.temporary {
			t.Errorf("%v: temporary is %v", err, got)
		}
	}
}

// Req: TP-001
func TestTheDefaultDeviceIsTheResourceManager(t *testing.T) {
	if got := newStore(t, tpmkey.Options{}).DeviceName(); got != "/dev/tpmrm0" {
		t.Errorf("the default device is %q", got)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]tpmkey.Options{
		"mode":             {Mode: "on"},
		"relative device":  {Device: "tpmrm0"},
		"relative socket":  {Device: "unix:tpm.sock"},
		"empty socket":     {Device: "unix:"},
		"other scheme":     {Device: "swtpm:host=localhost"},
		"long socket path": {Device: "unix:/" + strings.Repeat("x", 107)},
	} {
		_, err := tpmkey.New(o)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		wantFault(t, err, fault.Config)
	}
	for _, o := range []tpmkey.Options{{Mode: "auto"}, {Mode: "required"}, {Mode: "off"}, {Device: "unix:/" + strings.Repeat("x", 106)}} {
		if _, err := tpmkey.New(o); err != nil {
			t.Error(err)
		}
	}
}
