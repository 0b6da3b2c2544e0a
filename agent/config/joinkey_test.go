package config_test

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/seal"
)

func newKey(t *testing.T) (key seal.Key, jwk []byte, p pin.Pin) {
	t.Helper()
	private, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if key, err = seal.NewKey(private.PublicKey()); err != nil {
		t.Fatal(err)
	}
	if jwk, err = json.Marshal(key); err != nil {
		t.Fatal(err)
	}
	if p, err = key.Pin(); err != nil {
		t.Fatal(err)
	}
	return key, jwk, p
}

// keyDir returns a directory with a join key file of this content.
func keyDir(t *testing.T, content []byte) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, config.JoinKeyFile), content, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Req: CF-011 CF-012
func TestLoadJoinKey(t *testing.T) {
	key, jwk, p := newKey(t)
	other := pin.OfSPKI([]byte("another key"))
	for name, pins := range map[string]pin.Set{"the pin": {p}, "one of the pins": {other, p}} {
		got, found, err := config.LoadJoinKey(keyDir(t, jwk), pins)
		if err != nil || !found || !got.Equal(key) {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
	dir := keyDir(t, jwk)
	got, found, err := config.LoadJoinKey(dir, pin.Set{other})
	if !got.IsZero() || !found || fault.CodeOf(err) != fault.Verification {
		t.Fatalf("%v, %v", found, err)
	}
	for _, want := range []string{filepath.Join(dir, "join-encryption.jwk"), p.String(), other.String()} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %s", err, want)
		}
	}
	if hint := fault.HintOf(err); !strings.Contains(hint, "bcd/join-encryption.jwk") {
		t.Errorf("hint %q", hint)
	}
	if _, _, err := config.LoadJoinKey(dir, nil); fault.CodeOf(err) != fault.Verification {
		t.Errorf("no pin lets any key pass: %v", err)
	}
}

func TestJoinKeyFileThatIsAbsentOrBroken(t *testing.T) {
	_, jwk, p := newKey(t)
	if _, found, err := config.LoadJoinKey(t.TempDir(), pin.Set{p}); found || err != nil {
		t.Errorf("absent: %v, %v", found, err)
	}
	if _, found, err := config.LoadJoinKey(filepath.Join(t.TempDir(), "nowhere"), pin.Set{p}); found || err != nil {
		t.Errorf("no directory: %v, %v", found, err)
	}
	for name, content := range map[string]string{
		"empty":     "",
		"cut":       string(jwk[:len(jwk)-2]),
		"PEM":       "-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----\n",
		"too large": string(jwk) + strings.Repeat(" ", 16<<10),
		"private":   strings.Replace(string(jwk), "{", `{"d":"AA",`, 1),
	} {
		_, found, err := config.LoadJoinKey(keyDir(t, []byte(content)), pin.Set{p})
		if !found || fault.CodeOf(err) != fault.Config || fault.HintOf(err) == "" {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, config.JoinKeyFile), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, found, err := config.LoadJoinKey(dir, pin.Set{p}); !found || fault.CodeOf(err) != fault.Config {
		t.Errorf("a FIFO: %v, %v", found, err)
	}
}

// Req: CF-019 CF-027
func TestFileDecidesAloneAndOnlyItsAbsenceLeadsToTheFetch(t *testing.T) {
	key, jwk, p := newKey(t)
	_, wrong, _ := newKey(t)
	s := serve(t, documentOf(t, jwk))

	load := func(dir string, pins pin.Set, server string) (seal.Key, error) {
		c := config.Default()
		c.Path, c.JoinEncryption = filepath.Join(dir, "config.toml"), pins
		return c.JoinKey(t.Context(), server, s.fetcher())
	}
	if got, err := load(keyDir(t, jwk), pin.Set{p}, s.url); err != nil || !got.Equal(key) {
		t.Errorf("the file's key: %v", err)
	}
	if _, err := load(keyDir(t, wrong), pin.Set{p}, s.url); fault.CodeOf(err) != fault.Verification {
		t.Errorf("the file's key is another one: %v", err)
	}
	if _, err := load(keyDir(t, []byte("?")), pin.Set{p}, s.url); fault.CodeOf(err) != fault.Config {
		t.Errorf("the file is broken: %v", err)
	}
	if n := len(s.requests()); n != 0 {
		t.Errorf("%d requests although there is a file", n)
	}
	dir := t.TempDir()
	_, err := load(dir, pin.Set{p}, "")
	if fault.CodeOf(err) != fault.Config || !strings.Contains(err.Error(), filepath.Join(dir, "join-encryption.jwk")) {
		t.Errorf("no file and no server: %v", err)
	}
	if hint := fault.HintOf(err); !strings.Contains(hint, "bcd/join-encryption.jwk") || !strings.Contains(hint, "--server https://") {
		t.Errorf("hint %q names not both ways", hint)
	}
	if got, err := load(dir, pin.Set{p}, s.url); err != nil || !got.Equal(key) {
		t.Errorf("no file and a server: %v", err)
	}
	if got := s.requests(); len(got) != 1 {
		t.Errorf("requests %q", got)
	}
}
