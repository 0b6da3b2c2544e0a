package identity_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
)

func wantWorking(t *testing.T, s *identity.Store) *identity.Identity {
	t.Helper()
	id, key, err := s.Load()
	if err != nil {
		t.Fatalf("the identity does not load: %v", err)
	}
	digest := sha256.Sum256([]byte("x"))
	sig, err := key.Sign(rand.Reader, digest[:], crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if !ecdsa.VerifyASN1(id.Leaf().PublicKey.(*ecdsa.PublicKey), digest[:], sig) {
		t.Fatal("the key does not sign for the certificate")
	}
	return id
}

func wantFiles(t *testing.T, path string, want ...string) {
	t.Helper()
	var got []string
	for name := range snapshot(t, path) {
		got = append(got, name)
	}
	sortStrings := cmp.Transformer("set", func(names []string) map[string]bool {
		m := map[string]bool{}
		for _, n := range names {
			m[n] = true
		}
		return m
	})
	if diff := cmp.Diff(want, got, sortStrings); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// Req: JF-007 JF-010
func TestAJoin(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := stateDir(t)
	s := openStore(t, path)

	if _, _, err := s.Load(); !fault.Is(err, fault.NoIdentity) || fault.HintOf(err) == "" {
		t.Fatalf("load before the join: %v", err)
	}
	j, err := s.BeginJoin(t.Context(), tokenJoin)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if j.Resumed() || j.RequestID() != "" {
		t.Error("a new join says that it is resumed")
	}
	wantFiles(t, path, "join.key", "join-pending.json", "lock")
	if err := j.Reserve(); err != nil {
		t.Fatal(err)
	}
	id := admit(j.CSR(), nil)
	if err := j.Accept(id); err != nil {
		t.Fatal(err)
	}
	if err := j.Accept(id); err == nil {
		t.Error("an answer is accepted twice")
	}
	if got := wantWorking(t, s.Store); !cmp.Equal(got, id) {
		t.Errorf("(-want +got):\n%s", cmp.Diff(id, got))
	}
	wantFiles(t, path, "identity.json", "node.key", "lock")
	for name := range snapshot(t, path) {
		if info, err := os.Stat(filepath.Join(path, name)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}

	other := openStore(t, stateDir(t))
	k := must(other.BeginJoin(t.Context(), tokenJoin))
	defer k.Close()
	a, b := j.Key().Public().(*ecdsa.PublicKey), k.Key().Public().(*ecdsa.PublicKey)
	if a.Equal(b) || a.Curve != elliptic.P256() {
		t.Error("two joins share a key, or it is not on P-256")
	}
}

// Req: JF-008
func TestTheCSR(t *testing.T) {
	j := must(openStore(t, stateDir(t)).BeginJoin(t.Context(), tokenJoin))
	defer j.Close()
	csr, err := x509.ParseCertificateRequest(j.CSR())
	if err != nil {
		t.Fatal(err)
	}
	if err := csr.CheckSignature(); err != nil {
		t.Error(err)
	}
	if !csr.PublicKey.(*ecdsa.PublicKey).Equal(j.Key().Public()) {
		t.Error("the request is for another key")
	}
	if len(csr.Subject.Names)+len(csr.Extensions) != 0 {
		t.Errorf("the request asks for names: %s, %v", csr.Subject, csr.Extensions)
	}

	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("no openssl here to read the request with")
	}
	cmd := exec.Command(openssl, "req", "-verify", "-noout", "-inform", "PEM")
	cmd.Stdin = strings.NewReader(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: j.CSR()})))
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "OK") {
		t.Errorf("openssl: %v\n%s", err, out)
	}
}

func TestAJoinIsResumed(t *testing.T) {
	path := stateDir(t)
	s := openStore(t, path)
	first := must(s.BeginJoin(t.Context(), tokenJoin))
	if err := first.Reserve(); err != nil {
		t.Fatal(err)
	}
	first.Close()
	wantFiles(t, path, "join.key", "join-pending.json", "lock") // the room is given back, the join stays

	again := must(s.BeginJoin(t.Context(), tokenJoin))
	defer again.Close()
	if !again.Resumed() || !cmp.Equal(again.CSR(), first.CSR()) {
		t.Error("the join is not resumed with the same request")
	}
	if err := again.Defer("jreq_01"); err != nil {
		t.Fatal(err)
	}
	p, ok, err := s.PendingJoin()
	if err != nil || !ok || p != (identity.PendingJoin{JoinParams: tokenJoin, RequestID: "jreq_01"}) {
		t.Errorf("PendingJoin = %+v, %v, %v", p, ok, err)
	}
	third := must(s.BeginJoin(t.Context(), tokenJoin))
	defer third.Close()
	if third.RequestID() != "jreq_01" || !cmp.Equal(third.CSR(), first.CSR()) {
		t.Error("a deferred join is not resumed")
	}

	for _, other := range []identity.JoinParams{{Attestor: "tpm", Role: "node"}, {Attestor: "tpm", Role: "site"}} {
		j := must(s.BeginJoin(t.Context(), other))
		defer j.Close()
		if j.Resumed() || cmp.Equal(j.CSR(), third.CSR()) || j.RequestID() != "" {
			t.Errorf("%v resumes another join", other)
		}
		third = j
	}
}

// Another token resumes the same join. The file names the token that the request on the disk belongs to: the first one
// until the control plane answered the other.
func TestAJoinIsResumedWithAnotherToken(t *testing.T) {
	with := func(token string) identity.JoinParams {
		p := tokenJoin
		p.TokenID = token
		return p
	}
	s := openStore(t, stateDir(t))
	is := func(token, request string) {
		t.Helper()
		p, ok, err := s.PendingJoin()
		if err != nil || !ok || p != (identity.PendingJoin{JoinParams: with(token), RequestID: request}) {
			t.Errorf("PendingJoin = %+v, %v, %v, want %s and %q", p, ok, err, token, request)
		}
	}
	first := must(s.BeginJoin(t.Context(), with("jt_1")))
	is("jt_1", "")
	if err := first.Defer("jreq_01"); err != nil {
		t.Fatal(err)
	}
	is("jt_1", "jreq_01")

	second := must(s.BeginJoin(t.Context(), with("jt_2")))
	if !second.Resumed() || !cmp.Equal(second.CSR(), first.CSR()) || second.RequestID() != "jreq_01" {
		t.Error("another token begins another join")
	}
	is("jt_1", "jreq_01") // nothing was answered to the second token
	if err := second.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	is("jt_2", "")
	if err := second.Undo(); err != nil {
		t.Fatal(err)
	}
	is("jt_1", "jreq_01")
	if err := second.Defer("jreq_01"); err != nil {
		t.Fatal(err)
	}
	is("jt_2", "jreq_01")
}

// A signed answer to the new request settles that the earlier one is over.
func TestADeferralEndsWhatWasRestarted(t *testing.T) {
	s := openStore(t, stateDir(t))
	j := must(s.BeginJoin(t.Context(), tokenJoin))
	if err := j.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	csr := j.CSR()
	if err := j.Defer("jreq_02"); err != nil {
		t.Fatal(err)
	}
	if err := j.Undo(); err != nil {
		t.Fatal(err)
	}
	if again := must(s.BeginJoin(t.Context(), tokenJoin)); !cmp.Equal(again.CSR(), csr) || again.RequestID() != "jreq_02" {
		t.Error("the deferred request is lost")
	}
}

// A refusal is remembered with its request, and is over with the next deferral: it is not signed.
func TestARefusedJoinRequest(t *testing.T) {
	s := openStore(t, stateDir(t))
	j := must(s.BeginJoin(t.Context(), tokenJoin))
	csr := j.CSR()
	is := func(what string, j *identity.Join, refused bool) {
		t.Helper()
		p, ok, err := s.PendingJoin()
		if err != nil || !ok || p.RequestID != "jreq_01" || p.Waits() == refused || j.Refused() != refused || !cmp.Equal(j.CSR(), csr) {
			t.Errorf("%s: PendingJoin = %+v, %v, %v; refused %v", what, p, ok, err, j.Refused())
		}
	}
	for range 2 {
		if err := j.Defer("jreq_01"); err != nil {
			t.Fatal(err)
		}
		is("deferred", j, false)
		if err := j.Refuse(); err != nil {
			t.Fatal(err)
		}
		is("refused", j, true)
		j = must(s.BeginJoin(t.Context(), tokenJoin))
		is("resumed", j, true)
	}
	if err := j.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, _, err := s.PendingJoin(); err != nil || j.Refused() || p.RequestID != "" {
		t.Errorf("restarted: PendingJoin = %+v, %v; refused %v", p, err, j.Refused())
	}
	if err := j.Undo(); err != nil {
		t.Fatal(err)
	}
	is("undone", j, true)
}

// Ids in the file are for people to read. What cannot be one is not shown, and loses no join.
func TestDamagedIdsOfAPendingJoin(t *testing.T) {
	path := stateDir(t)
	s := openStore(t, path)
	params := tokenJoin
	params.TokenID = "jt_1"
	j := must(s.BeginJoin(t.Context(), params))
	if err := j.Defer("jreq_01"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(path, identity.PendingFile)
	data := string(must(os.ReadFile(file)))
	damaged := strings.NewReplacer("jreq_01", `\u001b[31m`, "jt_1", strings.Repeat("x", 300)).Replace(data)
	if err := os.WriteFile(file, []byte(damaged), 0o600); err != nil {
		t.Fatal(err)
	}
	p, ok, err := s.PendingJoin()
	if err != nil || !ok || p != (identity.PendingJoin{JoinParams: tokenJoin}) {
		t.Errorf("PendingJoin = %+v, %v, %v", p, ok, err)
	}
	if again := must(s.BeginJoin(t.Context(), params)); !again.Resumed() || !cmp.Equal(again.CSR(), j.CSR()) {
		t.Error("the join is lost")
	}
}

// A request that was refused for good is followed by one with a new key.
func TestRestart(t *testing.T) {
	s := openStore(t, stateDir(t))
	j := must(s.BeginJoin(t.Context(), tokenJoin))
	defer j.Close()
	csr, key := j.CSR(), j.Key().Public().(*ecdsa.PublicKey)
	if err := j.Defer("jreq_01"); err != nil {
		t.Fatal(err)
	}
	if err := j.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if cmp.Equal(csr, j.CSR()) || key.Equal(j.Key().Public()) || j.RequestID() != "" || j.Resumed() {
		t.Error("the join goes on with something of the refused one")
	}
	resumed := must(s.BeginJoin(t.Context(), tokenJoin))
	defer resumed.Close()
	if !cmp.Equal(resumed.CSR(), j.CSR()) {
		t.Error("the restarted join is not what is resumed")
	}
	if err := j.Accept(admit(csr, nil)); err == nil {
		t.Error("an answer to the refused request is accepted")
	}
	if err := j.Accept(admit(j.CSR(), nil)); err != nil {
		t.Fatal(err)
	}
	wantWorking(t, s.Store)
}

func TestARenewal(t *testing.T) {
	path, first := joined(t)
	s := openStore(t, path)
	r, err := s.BeginRenewal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	current, key := r.Current()
	if !cmp.Equal(current, first) || !current.Leaf().PublicKey.(*ecdsa.PublicKey).Equal(key.Public()) {
		t.Error("the renewal has another identity")
	}
	if r.Key().Public().(*ecdsa.PublicKey).Equal(key.Public()) {
		t.Error("the renewal keeps the key")
	}
	if err := r.Reserve(); err != nil {
		t.Fatal(err)
	}
	if err := r.Accept(first); err == nil {
		t.Error("the current certificate is accepted as the next one")
	}
	if got := wantWorking(t, s.Store); !cmp.Equal(got, first) {
		t.Error("the identity changed before the answer was accepted")
	}
	next := admit(r.CSR(), current)
	if err := r.Accept(next); err != nil {
		t.Fatal(err)
	}
	if got := wantWorking(t, s.Store); !cmp.Equal(got, next) {
		t.Error("the identity is not the renewed one")
	}
	wantFiles(t, path, "identity.json", "node.key", "lock")
}

// Req: RN-039
func TestAnExpiredIdentityLoads(t *testing.T) {
	path, _ := joined(t) // its certificate ended in 2021
	wantWorking(t, openStore(t, path).Store)
}

// Req: RS-014
func TestAJoinNeverReplacesAnIdentity(t *testing.T) {
	path, id := joined(t)
	s := openStore(t, path)
	before := snapshot(t, path)
	_, err := s.BeginJoin(t.Context(), tokenJoin)
	if !fault.Is(err, fault.AlreadyExists) || !strings.Contains(err.Error(), id.NodeID) {
		t.Errorf("a second join: %v", err)
	}
	if diff := cmp.Diff(before, snapshot(t, path)); diff != "" {
		t.Errorf("the files changed:\n%s", diff)
	}
}

// An identity that does not load is said and kept as it is, by every method.
func TestDamagedIdentities(t *testing.T) {
	newRecord := func() []byte {
		record, _, err := fileKeys{}.New(context.Background())
		return must(record, err)
	}
	replace := func(name, old, text string) func(map[string]string) {
		return func(f map[string]string) {
			if !strings.Contains(f[name], old) {
				panic(old)
			}
			f[name] = strings.Replace(f[name], old, text, 1)
		}
	}
	for name, tc := range map[string]struct {
		damage func(map[string]string)
		code   fault.Code
		says   string
	}{
		"truncated":               {func(f map[string]string) { f["identity.json"] = f["identity.json"][:700] }, fault.IdentityInvalid, "unexpected end"},
		"empty":                   {func(f map[string]string) { f["identity.json"] = "" }, fault.IdentityInvalid, "unexpected end"},
		"something after it":      {func(f map[string]string) { f["identity.json"] += "{}" }, fault.IdentityInvalid, "after top-level value"},
		"too large":               {func(f map[string]string) { f["identity.json"] += strings.Repeat(" ", identity.MaxFile) }, fault.IdentityInvalid, "larger than"},
		"newer version":           {replace("identity.json", `"version": 1`, `"version": 2`), fault.Newer, "newer"},
		"newer and another shape": {func(f map[string]string) { f["identity.json"] = `{"version":2,"chain":{"leaf":1}}` }, fault.Newer, "newer"},
		"no version":              {replace("identity.json", `"version": 1`, `"version": 0`), fault.IdentityInvalid, "does not exist"},
		"no chain":                {func(f map[string]string) { f["identity.json"] = `{"version":1}` }, fault.IdentityInvalid, "no certificate"},
		"other node id":           {replace("identity.json", `"nodeId": "node_01`, `"nodeId": "node_02`), fault.IdentityInvalid, "first URI"},
		"other role":              {replace("identity.json", `"role": "node"`, `"role": "site"`), fault.IdentityInvalid, "role"},
		"other key hash":          {replace("identity.json", `"keySpkiSha256": "sha256/`, `"keySpkiSha256": "sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "x": "`), fault.IdentityInvalid, "keySpkiSha256"},
		"no key":                  {func(f map[string]string) { delete(f, "node.key") }, fault.IdentityInvalid, "node.key"},
		"truncated key":           {func(f map[string]string) { f["node.key"] = f["node.key"][:100] }, fault.IdentityInvalid, "PEM"},
		"empty key":               {func(f map[string]string) { f["node.key"] = "" }, fault.IdentityInvalid, "PEM"},
		"another key":             {func(f map[string]string) { f["node.key"] = string(newRecord()) }, fault.IdentityInvalid, "not the certificate's key"},
		"key too large":           {func(f map[string]string) { f["node.key"] += strings.Repeat("\n", 1<<20) }, fault.IdentityInvalid, "larger than"},
		"another key and more": {func(f map[string]string) {
			f["node.key"], f["node.key.next"], f["join.key"], f["join-pending.json"] = string(newRecord()), "x", "y", "{}"
		}, fault.IdentityInvalid, "not the certificate's key"},
	} {
		t.Run(name, func(t *testing.T) {
			good, _ := joined(t)
			files := snapshot(t, good)
			tc.damage(files)
			path := stateDir(t)
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
			for name, content := range files {
				if err := os.WriteFile(filepath.Join(path, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s := openStore(t, path)
			before := snapshot(t, path)
			_, _, load := s.Load()
			_, join := s.BeginJoin(t.Context(), tokenJoin)
			_, renewal := s.BeginRenewal(t.Context())
			for what, err := range map[string]error{"load": load, "recover": s.Recover(), "join": join, "renewal": renewal} {
				if fault.CodeOf(err) != tc.code || fault.HintOf(err) == "" || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("%s: %v (code %s, hint %q), want %s and %q", what, err, fault.CodeOf(err), fault.HintOf(err), tc.code, tc.says)
				}
			}
			if diff := cmp.Diff(before, snapshot(t, path)); diff != "" {
				t.Errorf("the files changed:\n%s", diff)
			}
		})
	}
}

// A join that can't be resumed is begun again; one that can't be judged now is left alone.
func TestDamagedPendingJoins(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(map[string]string)
		fails  fault.Code // "" where a new join begins
	}{
		"truncated request": {func(f map[string]string) { f["join-pending.json"] = f["join-pending.json"][:50] }, ""},
		"changed request": {func(f map[string]string) {
			f["join-pending.json"] = strings.Replace(f["join-pending.json"], `"csr": "MI`, `"csr": "MJ`, 1)
		}, ""},
		"truncated key": {func(f map[string]string) { f["join.key"] = f["join.key"][:60] }, ""},
		"no key":        {func(f map[string]string) { delete(f, "join.key") }, ""},
		"no request":    {func(f map[string]string) { delete(f, "join-pending.json") }, ""},
		"another key": {func(f map[string]string) {
			record, _, err := fileKeys{}.New(context.Background())
			f["join.key"] = string(must(record, err))
		}, ""},
		"newer version": {func(f map[string]string) { f["join-pending.json"] = `{"version":3}` }, fault.Newer},
	} {
		t.Run(name, func(t *testing.T) {
			path := stateDir(t)
			s := openStore(t, path)
			csr := must(s.BeginJoin(t.Context(), tokenJoin)).CSR()
			files := snapshot(t, path)
			tc.damage(files)
			for _, name := range []string{"join.key", "join-pending.json"} {
				if err := os.Remove(filepath.Join(path, name)); err != nil {
					t.Fatal(err)
				}
				if content, ok := files[name]; ok {
					if err := os.WriteFile(filepath.Join(path, name), []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			before := snapshot(t, path)
			j, err := s.BeginJoin(t.Context(), tokenJoin)
			if tc.fails != "" {
				if !fault.Is(errors.Unwrap(err), tc.fails) && !fault.Is(err, tc.fails) {
					t.Errorf("%v, want %s", err, tc.fails)
				}
				if diff := cmp.Diff(before, snapshot(t, path)); diff != "" {
					t.Errorf("the files changed:\n%s", diff)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			if j.Resumed() || cmp.Equal(j.CSR(), csr) {
				t.Error("resumed")
			}
			if err := j.Accept(admit(j.CSR(), nil)); err != nil {
				t.Fatal(err)
			}
			wantWorking(t, s.Store)
		})
	}
}

// busyKeys are keys whose TPM does not answer now.
type busyKeys struct{ fileKeys }

func (busyKeys) Open([]byte) (crypto.Signer, error) {
	return nil, fault.New(fault.TPMUnavailable, "wait", "the TPM does not answer")
}

// A key that can't be opened at the moment doesn't cost the join that was sent with it.
func TestAPendingJoinSurvivesABusyTPM(t *testing.T) {
	path := stateDir(t)
	s := openStore(t, path)
	csr := must(s.BeginJoin(t.Context(), tokenJoin)).CSR()
	before := snapshot(t, path)
	if _, err := identity.New(s.dir, busyKeys{}).BeginJoin(t.Context(), tokenJoin); !fault.Is(err, fault.TPMUnavailable) {
		t.Errorf("%v", err)
	}
	if diff := cmp.Diff(before, snapshot(t, path)); diff != "" {
		t.Errorf("the files changed:\n%s", diff)
	}
	if again := must(s.BeginJoin(t.Context(), tokenJoin)); !cmp.Equal(again.CSR(), csr) {
		t.Error("not resumed")
	}
}

// p384Keys are keys of another curve.
type p384Keys struct{ fileKeys }

func (p384Keys) New(context.Context) ([]byte, crypto.Signer, error) {
	return []byte("record"), newKey(elliptic.P384()), nil
}

// Req: JF-007
func TestOnlyP256KeysJoin(t *testing.T) {
	path := stateDir(t)
	s := openStore(t, path)
	if _, err := identity.New(s.dir, p384Keys{}).BeginJoin(t.Context(), tokenJoin); err == nil || !strings.Contains(err.Error(), "P-256") {
		t.Errorf("%v", err)
	}
	wantFiles(t, path, "lock")
}

// A reader without the lock never sees a half-made change.
func TestLoadBesideRenewals(t *testing.T) {
	path, _ := joined(t)
	s := openStore(t, path)
	reader := must(statefile.Open(path))
	defer reader.Close()
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, _, err := identity.New(reader, fileKeys{}).Load(); err != nil {
					t.Errorf("beside a renewal: %v", err)
					return
				}
			}
		})
	}
	for range 40 {
		r := must(s.BeginRenewal(t.Context()))
		current, _ := r.Current()
		if err := r.Accept(admit(r.CSR(), current)); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	readers.Wait()
}

// A join whose request was never sent can be given up without a trace; the next one has a new key.
func TestAbandonedJoin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	s := openStore(t, path)
	j := must(s.BeginJoin(t.Context(), tokenJoin))
	csr := j.CSR()
	must(0, j.Reserve())
	j.Abandon()
	for _, name := range []string{identity.PendingFile, identity.JoinKeyFile} {
		if _, err := os.Stat(filepath.Join(path, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	j = must(s.BeginJoin(t.Context(), tokenJoin))
	defer j.Close()
	if j.Resumed() || cmp.Equal(j.CSR(), csr) {
		t.Error("the abandoned join is resumed")
	}
}

// A full disk fails before anything is sent, and what was reserved is enough for the largest answer.
func TestAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", path, "tmpfs", 0, "size=3m,mode=0700"); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	fill := func() {
		f := must(os.Create(filepath.Join(path, "filler")))
		defer f.Close()
		for block := make([]byte, 4096); ; {
			if _, err := f.Write(block); err != nil {
				return
			}
		}
	}
	s := openStore(t, path)
	j := must(s.BeginJoin(t.Context(), tokenJoin))
	csr := j.CSR()
	fill()
	if err := j.Reserve(); !fault.Is(err, fault.NoSpace) {
		t.Fatalf("reserve on a full disk: %v", err)
	}
	j.Close()
	must(0, os.Remove(filepath.Join(path, "filler")))
	j = must(s.BeginJoin(t.Context(), tokenJoin))
	defer j.Close()
	if !cmp.Equal(j.CSR(), csr) {
		t.Error("the join is not resumed")
	}
	if err := j.Reserve(); err != nil {
		t.Fatal(err)
	}
	fill()

	a := honest(j.CSR())
	a.admission.AllowedKinds = nil
	for range identity.MaxKinds {
		a.admission.AllowedKinds = append(a.admission.AllowedKinds, strings.Repeat("k", 253)+".*")
	}
	for _, bundle := range []*[][]byte{&a.admission.NodeCA, &a.admission.CommandTrust} {
		*bundle = append(*bundle, make([]byte, identity.MaxDER-2*len(nodeCA.cert.Raw)))
	}
	if err := j.Accept(must(a.check())); err != nil {
		t.Fatalf("the largest answer, within the reserved room: %v", err)
	}
	wantWorking(t, s.Store)

	fill()
	_, err := s.BeginRenewal(t.Context())
	if !fault.Is(err, fault.NoSpace) {
		t.Errorf("a renewal on a full disk: %v", err)
	}
	wantWorking(t, s.Store)
}

func TestAReadOnlyDirectoryLoads(t *testing.T) {
	path, _ := joined(t)
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	if err := unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Skipf("cannot remount here: %v", err)
	}
	dir := must(statefile.Open(path))
	defer dir.Close()
	s := identity.New(dir, fileKeys{})
	wantWorking(t, s)
	if _, err := s.BeginRenewal(t.Context()); !fault.Is(err, fault.Unwritable) {
		t.Errorf("a renewal: %v", err)
	}
	if _, err := os.Stat(filepath.Join(path, "node.key.next")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("node.key.next: %v", err)
	}
}
