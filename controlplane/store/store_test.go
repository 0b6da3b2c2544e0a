package store_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/fault"
)

var epoch = time.Date(2026, 11, 29, 11, 6, 11, 123_000_000, time.UTC)

func open(t testing.TB, change ...func(*store.Options)) store.Store {
	t.Helper()
	o := store.Options{Path: filepath.Join(t.TempDir(), "control.db"), Now: func() time.Time { return epoch }}
	for _, c := range change {
		c(&o)
	}
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func write(t testing.TB, s store.Store, fn func(tx *store.Tx) error) {
	t.Helper()
	if err := s.Write(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, s store.Store, fn func(tx *store.Tx) error) {
	t.Helper()
	if err := s.Read(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

const (
	tenantID = "tn_01k5w0000000000000000000t1"
	siteID   = "site_01k5w0000000000000000000s1"
	poolID   = "pool_01k5w0000000000000000000p1"
)

func seed(t testing.TB, s store.Store) {
	t.Helper()
	write(t, s, func(tx *store.Tx) error {
		return errors.Join(
			tx.InsertTenant(store.Tenant{ID: tenantID, Name: "root"}),
			tx.InsertSite(store.Site{ID: siteID, TenantID: tenantID, Name: "eu"}),
			tx.InsertPool(store.Pool{ID: poolID, TenantID: tenantID, SiteID: siteID, Name: "metal", Agent: store.AgentBCD}),
		)
	})
}

func TestRowsComeBackAsWritten(t *testing.T) {
	s := open(t)
	seed(t, s)
	token := store.Token{
		ID: "jt_1", TenantID: tenantID, PoolID: poolID, SiteID: siteID, Role: store.TokenNode,
		SecretSHA256: sha256.Sum256([]byte("x")), MaxUses: 3, UsesLeft: 3,
		Expect:       &hwclaims.Expect{Serial: "SN-7701"},
		AllowReclaim: true, Hosted: "kubernetes", NodeID: "node_1", CreatedBy: "key_1",
		CreatedAt: epoch, ExpiresAt: epoch.Add(time.Hour),
	}
	node := store.Node{
		ID: "node_1", TenantID: tenantID, PoolID: poolID, SiteID: siteID, Role: store.RoleNode, State: store.NodeAdopting,
		Trust: store.TrustPlatform, IdentityGeneration: 1, HardwareKey: []byte{1, 2}, HardwareKeyTrusted: true,
		Claims: hwclaims.Claims{ProductSerial: "SN-7701", MACs: []string{"aa:bb:cc:dd:ee:ff"}}, JoinedAt: epoch,
	}
	cert := store.Cert{
		Serial: "0a1b", NodeID: node.ID, Generation: 1, Role: "node", SPKISHA256: sha256.Sum256([]byte("spki")),
		CSRSHA256: sha256.Sum256([]byte("csr")), DER: []byte("leaf"), Issuers: []byte("ca"),
		AllowedKinds: []string{"disk.*"}, Statements: []string{"urn:bc:tpm-ak:sha256:00"},
		MaxLifetime: 10 * time.Minute,
		NotBefore:   epoch.Add(-5 * time.Minute), NotAfter: epoch.Add(time.Hour), IssuedAt: epoch,
	}
	join := store.Join{
		CSRSHA256: cert.CSRSHA256, Attestor: "join-token", TokenID: token.ID, Role: "node", NodeID: node.ID, PoolID: poolID,
		Serial: cert.Serial, JoinedAt: epoch,
	}
	key := store.APIKey{
		ID: "key_1", TenantID: tenantID, Name: "admin", SHA256: sha256.Sum256([]byte("k")), Actions: []string{"*"},
		CreatedAt: epoch, ExpiresAt: epoch.Add(time.Hour),
	}
	pool := store.Pool{
		ID: "pool_2", TenantID: tenantID, SiteID: siteID, Name: "k8s", Agent: store.AgentNone, Acceptance: true,
		Policy: store.PoolPolicy{
			JoinAttestors: []string{}, Kubernetes: store.KubernetesPolicy{PlatformOperated: true},
		},
		CreatedAt: epoch, ArchivedAt: epoch,
	}
	write(t, s, func(tx *store.Tx) error {
		return errors.Join(tx.InsertToken(token), tx.InsertNode(node), tx.PutNodeAuthz(node), tx.InsertCert(cert),
			tx.InsertJoin(join), tx.InsertAPIKey(key), tx.InsertPool(pool), tx.Enqueue(node.ID, "joined"))
	})
	read(t, s, func(tx *store.Tx) error {
		same(t, "token", token)(tx.Token(token.ID))
		same(t, "node", node)(tx.Node(node.ID))
		same(t, "node by key", node)(tx.NodeByHardwareKey(node.HardwareKey))
		same(t, "certificate", cert)(tx.Cert(cert.Serial))
		same(t, "certificate by key", cert)(tx.CertBySPKI(cert.SPKISHA256))
		same(t, "join", join)(tx.Join(join.CSRSHA256))
		same(t, "API key", key)(tx.APIKeyByDigest(key.SHA256))
		same(t, "pool", pool)(tx.Pool(pool.ID))
		same(t, "authorization", store.NodeAuthz{
			NodeID: node.ID, TenantID: tenantID, PoolID: poolID, SiteID: siteID, Role: "node", Trust: store.TrustPlatform,
		})(tx.NodeAuthz(node.ID))
		same(t, "queue", []store.Queued{{NodeID: node.ID, Reason: "joined", QueuedAt: epoch}})(tx.Queue(10))
		return nil
	})
}

func same[T any](t *testing.T, what string, want T) func(T, error) {
	return func(got T, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

func TestMissingRowsAreNotFound(t *testing.T) {
	s := open(t)
	err := s.Write(t.Context(), func(tx *store.Tx) error {
		for name, call := range map[string]func() error{
			"token":  func() error { _, err := tx.Token("x"); return err },
			"node":   func() error { _, err := tx.Node("x"); return err },
			"cert":   func() error { _, err := tx.Cert("x"); return err },
			"pool":   func() error { _, err := tx.Pool("x"); return err },
			"spend":  func() error { return tx.SpendToken("x") },
			"state":  func() error { return tx.SetNodeState("x", store.NodeAdopted) },
			"revoke": func() error { return tx.RevokeAPIKey("x", "y") },
		} {
			if err := call(); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("%s: %v, want ErrNotFound", name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTrustedHardwareKeyIsUnique(t *testing.T) {
	s := open(t)
	seed(t, s)
	node := func(id string, trusted bool) store.Node {
		return store.Node{
			ID: id, TenantID: tenantID, PoolID: poolID, SiteID: siteID, Role: "node", State: store.NodeAdopted,
			Trust: store.TrustPlatform, IdentityGeneration: 1, HardwareKey: []byte{7}, HardwareKeyTrusted: trusted,
		}
	}
	write(t, s, func(tx *store.Tx) error { return tx.InsertNode(node("node_1", true)) })
	write(t, s, func(tx *store.Tx) error { return tx.InsertNode(node("node_2", false)) })
	write(t, s, func(tx *store.Tx) error { return tx.InsertNode(node("node_3", false)) })
	err := s.Write(t.Context(), func(tx *store.Tx) error { return tx.InsertNode(node("node_4", true)) })
	if !errors.Is(err, store.ErrDuplicate) {
		t.Errorf("a second trusted key: %v, want ErrDuplicate", err)
	}
}

func TestEventsAreNumberedPerTenant(t *testing.T) {
	s := open(t)
	for range 3 {
		write(t, s, func(tx *store.Tx) error {
			return errors.Join(tx.Publish("tn_a", events.NodeAdopted{NodeID: "n"}), tx.Publish("tn_b", events.AcceptanceStarted{NodeID: "n"}))
		})
	}
	// A transaction that is undone leaves no gap.
	_ = s.Write(t.Context(), func(tx *store.Tx) error {
		return errors.Join(tx.Publish("tn_a", events.NodeAdopted{NodeID: "n"}), errors.New("no"))
	})
	write(t, s, func(tx *store.Tx) error { return tx.Publish("tn_a", events.NodeAdopted{NodeID: "last"}) })
	read(t, s, func(tx *store.Tx) error {
		got, err := tx.Events("tn_a", 2, 10)
		want := []events.Event{
			{Tenant: "tn_a", Seq: 3, Type: "node.adopted", At: epoch, Data: []byte(`{"nodeId":"n"}`)},
			{Tenant: "tn_a", Seq: 4, Type: "node.adopted", At: epoch, Data: []byte(`{"nodeId":"last"}`)},
		}
		same(t, "events", want)(got, err)
		return nil
	})
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	s := open(t)
	boom := errors.New("boom")
	err := s.Write(t.Context(), func(tx *store.Tx) error {
		return errors.Join(tx.InsertTenant(store.Tenant{ID: "tn_x", Name: "x"}), boom)
	})
	if !errors.Is(err, boom) {
		t.Fatalf("err = %v", err)
	}
	read(t, s, func(tx *store.Tx) error {
		if _, err := tx.Tenant("tn_x"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("the row is there: %v", err)
		}
		return nil
	})
}

// Writes that share a commit share nothing else: one that fails or panics undoes only itself.
func TestConcurrentWritesAreApart(t *testing.T) {
	s := open(t)
	const n = 60
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			defer func() {
				if p := recover(); (p != nil) != (i%3 == 2) {
					t.Errorf("write %d: panic %v", i, p)
				}
			}()
			err := s.Write(t.Context(), func(tx *store.Tx) error {
				if err := tx.InsertTenant(store.Tenant{ID: fmt.Sprintf("tn_%02d", i), Name: "x"}); err != nil {
					return err
				}
				switch i % 3 {
				case 1:
					return errors.New("no")
				case 2:
					panic("no")
				}
				return nil
			})
			if (err != nil) != (i%3 == 1) {
				t.Errorf("write %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	read(t, s, func(tx *store.Tx) error {
		all, err := tx.Tenants()
		if err != nil {
			return err
		}
		if len(all) != n/3 {
			t.Errorf("%d tenants, want %d", len(all), n/3)
		}
		return nil
	})
}

func TestReadTransactionDoesNotWrite(t *testing.T) {
	s := open(t)
	err := s.Read(t.Context(), func(tx *store.Tx) error { return tx.InsertTenant(store.Tenant{ID: "tn_x", Name: "x"}) })
	if err == nil {
		t.Error("a read wrote")
	}
	err = s.Read(t.Context(), func(tx *store.Tx) error { return tx.Publish("tn_x", events.NodeAdopted{}) })
	if err == nil {
		t.Error("a read published")
	}
}

// A write that a caller no longer waits for does not start, and one that waits does not hold up the others.
func TestCancelledWriteDoesNotRun(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.Write(ctx, func(*store.Tx) error { t.Error("it ran"); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	seed(t, s)
}

// A write that waits behind another one is given up with its context, and the other goes on.
func TestWaitingWriteIsGivenUp(t *testing.T) {
	s := open(t)
	started, finish := make(chan struct{}), make(chan struct{})
	first := make(chan error)
	go func() {
		first <- s.Write(context.Background(), func(tx *store.Tx) error {
			close(started)
			<-finish
			return tx.InsertTenant(store.Tenant{ID: "tn_x", Name: "x"})
		})
	}()
	<-started
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.Write(ctx, func(*store.Tx) error { t.Error("it ran"); return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	close(finish)
	if err := <-first; err != nil {
		t.Error(err)
	}
	read(t, s, func(tx *store.Tx) error { _, err := tx.Tenant("tn_x"); return err })
}

func TestClosedStoreFails(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{
		Path: filepath.Join(t.TempDir(), "control.db"), Now: func() time.Time { return epoch },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(t.Context(), func(*store.Tx) error { return nil }); err == nil {
		t.Error("a write after Close")
	}
	if err := s.Read(t.Context(), func(*store.Tx) error { return nil }); err == nil {
		t.Error("a read after Close")
	}
}

func TestClockIsReadUnderTheLock(t *testing.T) {
	now := epoch
	s := open(t, func(o *store.Options) { o.Now = func() time.Time { return now } })
	write(t, s, func(tx *store.Tx) error { return tx.InsertTenant(store.Tenant{ID: "tn_x", Name: "x"}) })
	now = epoch.Add(time.Hour).Add(300 * time.Microsecond)
	write(t, s, func(tx *store.Tx) error {
		if want := epoch.Add(time.Hour); !tx.Now().Equal(want) {
			t.Errorf("now = %v, want %v", tx.Now(), want)
		}
		return nil
	})
}

func TestFaultsAreInjectedAfterAStep(t *testing.T) {
	boom := errors.New("boom")
	s := open(t, func(o *store.Options) {
		o.AfterStep = func(step string) error {
			if step == "insert the tenant" {
				return boom
			}
			return nil
		}
	})
	err := s.Write(t.Context(), func(tx *store.Tx) error { return tx.InsertTenant(store.Tenant{ID: "tn_x", Name: "x"}) })
	if !errors.Is(err, boom) {
		t.Errorf("err = %v", err)
	}
}

func TestWatchWakesAfterTheCommit(t *testing.T) {
	s := open(t)
	changed, stop := s.Watch("node/1")
	other, stopOther := s.Watch("node/2")
	defer stopOther()
	_ = s.Write(t.Context(), func(tx *store.Tx) error { tx.Notify("node/1"); return errors.New("no") })
	select {
	case <-changed:
		t.Error("woken by a transaction that was undone")
	default:
	}
	for range 2 {
		write(t, s, func(tx *store.Tx) error { tx.Notify("node/1"); return nil })
	}
	select {
	case <-changed:
	default:
		t.Error("not woken")
	}
	select {
	case <-other:
		t.Error("woken by another topic")
	default:
	}
	stop()
	write(t, s, func(tx *store.Tx) error { tx.Notify("node/1"); return nil })
	select {
	case <-changed:
		t.Error("woken after stop")
	default:
	}
}

func TestDatabaseFileIsPrivateAndSurvives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a?b#c.db") // names that are no URL
	o := store.Options{Path: path, Now: func() time.Time { return epoch }}
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	seed(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
	s, err = store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read(t, s, func(tx *store.Tx) error { _, err := tx.Pool(poolID); return err })
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	o := store.Options{Path: path, Now: func() time.Time { return epoch }}
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	store.RaiseSchemaVersion(t, path)
	_, err = store.Open(t.Context(), o)
	if !fault.Is(err, fault.Newer) || fault.HintOf(err) == "" {
		t.Errorf("err = %v, want NEWER_VERSION with a hint", err)
	}
}

func TestProofsAreForgotten(t *testing.T) {
	now := epoch
	s := open(t, func(o *store.Options) { o.Now = func() time.Time { return now } })
	digest := sha256.Sum256([]byte("proof"))
	use := func() error {
		return s.Write(t.Context(), func(tx *store.Tx) error { return tx.UseProof(digest, 2*time.Minute) })
	}
	if err := use(); err != nil {
		t.Fatal(err)
	}
	now = epoch.Add(2 * time.Minute)
	if err := use(); !errors.Is(err, store.ErrDuplicate) {
		t.Errorf("after 120 s: %v, want ErrDuplicate", err)
	}
	now = epoch.Add(2*time.Minute + time.Millisecond)
	if err := use(); err != nil {
		t.Errorf("after more than 120 s: %v", err)
	}
}

func TestIDs(t *testing.T) {
	a, b := store.NewID(store.PrefixToken, epoch), store.NewID(store.PrefixToken, epoch.Add(time.Millisecond))
	if a >= b {
		t.Errorf("%s does not sort before %s", a, b)
	}
	if err := store.CheckID(store.PrefixToken, a); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{
		"", "jt_", "node" + a[2:], a + "0", a[:len(a)-1], "jt_8" + a[4:], a[:len(a)-1] + "u", a[:len(a)-1] + "A", a + "\n",
	} {
		if store.CheckID(store.PrefixToken, bad) == nil {
			t.Errorf("%q is taken for an id", bad)
		}
	}
}

// A list sorted by id is in the order in which its rows were written, however many fall into a millisecond.
func TestIDsOfWritesGrow(t *testing.T) {
	now := epoch
	s := open(t, func(o *store.Options) { o.Now = func() time.Time { return now } })
	last := ""
	for round := range 3 {
		write(t, s, func(tx *store.Tx) error {
			for range 5000 {
				id := tx.NewID(store.PrefixAudit)
				if err := store.CheckID(store.PrefixAudit, id); err != nil {
					return err
				}
				if id <= last {
					return fmt.Errorf("%s does not sort after %s", id, last)
				}
				last = id
			}
			return nil
		})
		now = epoch.Add(time.Duration(1-round) * time.Second) // forward, then back
	}
}
