package tpmkey_test

import (
	"context"
	"crypto"
	"crypto/sha256"
	"os"
	"runtime"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// renewal is what a node asks of its TPM to renew: the next key, its request's signature, its certification, and a signature
// by the old key.
func renewal(ctx context.Context, s *tpmkey.Store, statement string, old crypto.Signer) (crypto.Signer, error) {
	record, next, err := s.New(ctx)
	if err != nil {
		return nil, err
	}
	if err := sign(next); err != nil {
		return nil, err
	}
	csr := sha256.Sum256(record)
	c, err := s.Attester().Certify(ctx, next, csr)
	if err != nil {
		return nil, err
	}
	if err := attest.VerifyCertification(c, statement, next.Public(), csr); err != nil {
		return nil, err
	}
	return next, sign(old)
}

// A hundred renewals in a row: nothing stays loaded, and neither memory nor goroutines grow. BCD_LONG=1 makes it 1,000.
func TestManyRenewals(t *testing.T) {
	cycles := 100
	if os.Getenv("BCD_LONG") == "1" {
		cycles = 1000
	}
	tpm := tpmkeytest.Any(t)
	tpm.Persist(t, tpm2.ECCSRKTemplate, srk)
	s := storeOn(t, tpm)
	statement := statementOf(t, identify(t, s))
	_, key := newKey(t, s)
	var before, after runtime.MemStats
	goroutines := 0
	for i := range cycles {
		if i == cycles/10 { // everything that is made once is made
			tpm.Commands() // the relay's list of what it saw would grow
			runtime.GC()
			runtime.ReadMemStats(&before)
			goroutines = runtime.NumGoroutine()
		}
		next, err := renewal(t.Context(), s, statement, key)
		if err != nil {
			t.Fatalf("renewal %d: %v", i+1, err)
		}
		key = next
		if loaded := tpm.Handles(t); len(loaded) > 0 {
			t.Fatalf("after renewal %d still loaded: %#x", i+1, loaded)
		}
		tpm.Commands()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines, after a tenth of the renewals %d", n, goroutines)
	}
	const slack = 256 << 10
	if after.HeapAlloc > before.HeapAlloc+slack {
		t.Errorf("the heap grew from %d to %d bytes", before.HeapAlloc, after.HeapAlloc)
	}
}

// benchmark runs an operation with the storage root key in place, as an operating system's installer leaves it, and counts the
// TPM's commands.
func benchmark(b *testing.B, prepare func(*tpmkey.Store) func() error) {
	b.Helper()
	tpm := tpmkeytest.Any(b)
	tpm.Persist(b, tpm2.ECCSRKTemplate, srk)
	operation := prepare(storeOn(b, tpm))
	tpm.Commands()
	n := 0
	for b.Loop() {
		if err := operation(); err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(len(tpm.Commands()))/float64(n), "commands/op")
}

func BenchmarkNew(b *testing.B) {
	benchmark(b, func(s *tpmkey.Store) func() error {
		return func() error { _, _, err := s.New(b.Context()); return err }
	})
}

func BenchmarkCertify(b *testing.B) {
	benchmark(b, func(s *tpmkey.Store) func() error {
		_, key := newKey(b, s)
		a := s.Attester()
		return func() error { _, err := a.Certify(b.Context(), key, [32]byte{1}); return err }
	})
}

func BenchmarkIdentify(b *testing.B) {
	benchmark(b, func(s *tpmkey.Store) func() error {
		a := s.Attester()
		return func() error { _, err := a.Identify(b.Context()); return err }
	})
}

func BenchmarkActivateCredential(b *testing.B) {
	benchmark(b, func(s *tpmkey.Store) func() error {
		id, a := identify(b, s), s.Attester()
		blob, encrypted, err := attest.MakeCredential(id.EK, id.AKPublic, [32]byte(randomBytes(32)))
		if err != nil {
			b.Fatal(err)
		}
		return func() error { _, err := a.ActivateCredential(b.Context(), blob, encrypted); return err }
	})
}

func BenchmarkRenewal(b *testing.B) {
	benchmark(b, func(s *tpmkey.Store) func() error {
		statement := statementOf(b, identify(b, s))
		_, key := newKey(b, s)
		return func() error { _, err := renewal(b.Context(), s, statement, key); return err }
	})
}
