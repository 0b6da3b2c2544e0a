package store_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
			"token": func() error { _, err := tx.Token("x"); return err },
			"node":  func() error { _, err := tx.Node("x"); return err },
			"cert":  func() error { _, err := tx.Cert("x"); return err },
			"pool":  func() error { _, err := tx.Pool("x"); return err },
			"spend": func() error { return tx.SpendToken("x") },
			"state": func() error { return tx.SetNodeState("x", store.NodeAdopted) },
			"site":  func() error { return tx.UpdateSite(store.Site{ID: "x", TenantID: tenantID}) },
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
		all, err := tx.Tenants("", 1000)
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

// A lock that another process holds is temporary, and says so.
func TestLockedDatabaseIsBusy(t *testing.T) {
	store.SetBusyTimeout(t, 20*time.Millisecond)
	path := filepath.Join(t.TempDir(), "control.db")
	s := open(t, func(o *store.Options) { o.Path = path })
	unlock := store.Lock(t, path)
	insert := func(tx *store.Tx) error { return tx.InsertTenant(store.Tenant{ID: tenantID}) }
	if err := s.Write(t.Context(), insert); !fault.Is(err, fault.Busy) {
		t.Errorf("a write under another's lock: %v, want %s", err, fault.Busy)
	}
	read(t, s, func(tx *store.Tx) error { // which takes no lock
		if _, err := tx.Tenant(tenantID); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("the tenant: %v", err)
		}
		return nil
	})
	unlock()
	write(t, s, insert)
}

func TestDamagedDatabaseIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	o := store.Options{Path: path, Now: func() time.Time { return epoch }}
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"no database":  bytes.Repeat([]byte("no database "), 1000),
		"cut":          good[:len(good)/2],
		"half written": append(slices.Clone(good[:4096]), make([]byte, len(good)-4096)...),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := store.Open(t.Context(), o)
		if !fault.Is(err, fault.Config) || fault.HintOf(err) != "restore the database from a backup" {
			t.Errorf("%s: %v", name, err)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
			t.Errorf("%s: the file was changed, %v", name, err)
		}
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

func TestEventsMatching(t *testing.T) {
	now := epoch
	s := open(t, func(o *store.Options) { o.Now = func() time.Time { return now } })
	// Two events a second, of a type in turn, with the numbers 1 to 10: the clock stands still for each pair.
	for i := range 5 {
		write(t, s, func(tx *store.Tx) error {
			return errors.Join(tx.Publish("tn_a", events.NodeAdopted{NodeID: "n"}), tx.Publish("tn_a", events.AcceptanceStarted{NodeID: "n"}),
				tx.Publish("tn_b", events.NodeAdopted{NodeID: "n"}))
		})
		if i < 4 {
			now = now.Add(time.Second)
		}
	}
	at := func(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }
	for name, x := range map[string]struct {
		filter store.EventFilter
		want   []int64
	}{
		"all":                    {store.EventFilter{}, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		"after":                  {store.EventFilter{After: 8}, []int64{9, 10}},
		"after the last":         {store.EventFilter{After: 10}, nil},
		"after what is to come":  {store.EventFilter{After: 99, Since: at(1)}, nil},
		"a type":                 {store.EventFilter{Type: events.TypeNodeAdopted}, []int64{1, 3, 5, 7, 9}},
		"a type, after":          {store.EventFilter{Type: events.TypeAcceptanceStarted, After: 6}, []int64{8, 10}},
		"a type that never was":  {store.EventFilter{Type: events.TypeRenewForked}, nil},
		"since the beginning":    {store.EventFilter{Since: at(-1)}, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		"since the first":        {store.EventFilter{Since: at(0)}, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		"since between":          {store.EventFilter{Since: at(0.5)}, []int64{3, 4, 5, 6, 7, 8, 9, 10}},
		"since a pair":           {store.EventFilter{Since: at(3)}, []int64{7, 8, 9, 10}},
		"since the last":         {store.EventFilter{Since: at(4)}, []int64{9, 10}},
		"since later":            {store.EventFilter{Since: at(4.001)}, nil},
		"since, but after":       {store.EventFilter{Since: at(1), After: 7}, []int64{8, 9, 10}},
		"after, but since":       {store.EventFilter{Since: at(3), After: 2}, []int64{7, 8, 9, 10}},
		"a type since":           {store.EventFilter{Since: at(3), Type: events.TypeNodeAdopted}, []int64{7, 9}},
		"a type since and after": {store.EventFilter{Since: at(1), After: 7, Type: events.TypeNodeAdopted}, []int64{9}},
	} {
		for _, limit := range []int{10, 2} {
			read(t, s, func(tx *store.Tx) error {
				found, err := tx.EventsMatching("tn_a", x.filter, limit)
				var got []int64
				for _, e := range found {
					got = append(got, e.Seq)
				}
				if want := x.want[:min(limit, len(x.want))]; err != nil || !slices.Equal(got, want) {
					t.Errorf("%s, at most %d: %v, %v, want %v", name, limit, got, err, want)
				}
				return nil
			})
		}
	}
	read(t, s, func(tx *store.Tx) error {
		if got, err := tx.EventsMatching("tn_none", store.EventFilter{Since: epoch}, 10); err != nil || len(got) != 0 {
			t.Errorf("of a tenant without events: %v, %v", got, err)
		}
		return nil
	})
}

// No query that a join, a renewal, a session or a list makes reads a table to its end: with 100,000 nodes and a million
// events that would be seconds.
func TestQueriesUseIndexes(t *testing.T) {
	s := open(t)
	write(t, s, func(tx *store.Tx) error {
		_ = tx.SpendToken("x")
		_, _ = tx.RevokeToken("x")
		_, _ = tx.RevokeCerts("x", 1, "x")
		_ = tx.RevokeCert(&store.Cert{Serial: "x"}, "x")
		_ = tx.MarkCertUsed("x")
		_ = tx.ReclaimNode(store.Node{ID: "x"})
		_ = tx.SetNodeState("x", store.NodeAdopted)
		_ = tx.SetNodeConditions("x", nil)
		_, _ = tx.RecordHello("x", nil)
		_ = tx.Dequeue("x")
		_ = tx.CordonNode("x")
		_ = tx.UncordonNode("x")
		_ = tx.DeleteNode("x")
		_ = tx.FreeMachine("x")
		_, _ = tx.RemoveEKAllow("x")
		_ = tx.RefreshJoinRequest(store.JoinRequest{ID: "x"})
		_ = tx.DecideJoinRequest(store.JoinRequest{ID: "x", State: store.JoinRequestRejected})
		_ = tx.ConsumeJoinRequest("x")
		_ = tx.InsertJoinRequest(store.JoinRequest{ID: "x", SiteID: "x"}) // of no tenant
		return errors.Join(tx.UseProof([32]byte{}, time.Minute), tx.Publish("tn_a", events.NodeAdopted{NodeID: "n"}))
	})
	read(t, s, func(tx *store.Tx) error {
		_, _ = tx.Token("x")
		_, _ = tx.TokensOfPool("x", true, "", 1)
		_, _ = tx.TokensOfPool("x", false, "", 1)
		_, _ = tx.Join([32]byte{})
		_, _ = tx.ProofUsed([32]byte{}, time.Minute)
		_, _ = tx.Cert("x")
		_, _ = tx.CertBySPKI([32]byte{})
		_, _ = tx.CertsOfNode("x")
		_, _ = tx.NewestCert("x")
		_, _ = tx.Successors("x")
		_, _ = tx.Node("x")
		_, _ = tx.NodeByHardwareKey([]byte("x"))
		_, _ = tx.NodeByEK([32]byte{})
		_, _ = tx.EKAllow("x")
		_, _ = tx.EKAllowsOf([32]byte{})
		_, _ = tx.EKAllowsOfPool("x", "", 1)
		_, _ = tx.NodesOfPool("x", "", 1)
		_, _ = tx.NodesOfTenant("x", "", 1)
		_, _ = tx.NodeAuthz("x")
		_, _ = tx.Tenant("x")
		_, _ = tx.Site("x")
		_, _ = tx.Sites("x", "", 1)
		_, _ = tx.SiteIsShared(store.Site{ID: "x"})
		_, _ = tx.Tenants("", 1)
		_, _ = tx.JoinRequest("x")
		_, _ = tx.JoinRequestsOfCSR("x", [32]byte{})
		_, _ = tx.PendingJoinRequest("x", "x", "x")
		_, _, _ = tx.CountJoinRequests("x", time.Minute)
		_, _ = tx.JoinRequestsOfPool(store.Pool{ID: "x", SiteID: "x"}, "", "", 1)
		_, _ = tx.TokensOfSite("x", true, "", 1)
		_, _ = tx.TokensOfSite("x", false, "", 1)
		_, _ = tx.Pool("x")
		_, _ = tx.Pools("x", true, "", 1)
		_, _ = tx.Pools("x", false, "", 1)
		_, _ = tx.APIKey("x")
		_, _ = tx.APIKeyByDigest([32]byte{})
		_, _ = tx.APIKeys("x", true, "", 1)
		_, _ = tx.APIKeys("x", false, "", 1)
		_, _ = tx.Idempotent(store.IdempotencyKey{})
		_, _ = tx.Audit("x", "", 1)
		_, _ = tx.EventsMatching("tn_a", store.EventFilter{Since: epoch}, 1)
		_, _ = tx.EventsMatching("tn_a", store.EventFilter{Type: "x", Since: epoch}, 1)
		return nil
	})
	plans := store.Plans(t, s)
	if len(plans) < 35 {
		t.Errorf("only %d queries ran", len(plans))
	}
	for query, steps := range plans {
		for _, step := range steps {
			if strings.HasPrefix(step, "SCAN") {
				t.Errorf("%s: %s", step, query)
			}
		}
		// The type is found in the index, not by reading the stream.
		if strings.Contains(query, "AND type = ?") && !slices.Contains(steps, "SEARCH events USING COVERING INDEX events_by_type (tenant_id=? AND type=? AND seq>?)") {
			t.Errorf("%q: %s", steps, query)
		}
	}
}
