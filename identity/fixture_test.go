package identity_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
)

const (
	fixtures   = "../testdata/state/v1"
	fixturesV2 = "../testdata/state/v2" // of join-pending.json alone
)

// Every state that version 1 could leave is understood and finished.
func TestVersion1(t *testing.T) {
	for name, tc := range map[string]struct {
		loads   bool // before recovery
		joined  bool // after it
		request string
		files   []string // after it
	}{
		"join-pending":      {files: []string{"join.key", "join-pending.json"}},
		"join-deferred":     {request: "jreq_01k5w0000000000000000000ef", files: []string{"join.key", "join-pending.json"}},
		"join-answered":     {joined: true, files: []string{"identity.json", "node.key"}},
		"join-committed":    {loads: true, joined: true, files: []string{"identity.json", "node.key"}},
		"joined":            {loads: true, joined: true, files: []string{"identity.json", "node.key"}},
		"renewal-begun":     {loads: true, joined: true, files: []string{"identity.json", "node.key"}},
		"renewal-committed": {loads: true, joined: true, files: []string{"identity.json", "node.key"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := copyDir(t, filepath.Join(fixtures, name))
			s := openStore(t, path)
			if _, _, err := s.Load(); (err == nil) != tc.loads || err != nil && !fault.Is(err, fault.NoIdentity) {
				t.Errorf("load: %v", err)
			}
			if err := s.Recover(); err != nil {
				t.Fatal(err)
			}
			wantFiles(t, path, append(tc.files, "lock")...)
			if !tc.joined {
				p, ok, err := s.PendingJoin()
				if err != nil || !ok || p != (identity.PendingJoin{JoinParams: tokenJoin, RequestID: tc.request}) {
					t.Errorf("PendingJoin = %+v, %v, %v", p, ok, err)
				}
				if j := must(s.BeginJoin(t.Context(), tokenJoin)); !j.Resumed() {
					t.Error("not resumed")
				}
				return
			}
			id := wantWorking(t, s.Store)
			got := *id
			got.Chain, got.NodeCA, got.CommandTrust, got.KeySPKISHA256 = nil, nil, nil, pin.Pin{}
			want := identity.Identity{
				Version: 1, NodeID: "node_01k5w0000000000000000000ab", Site: "site_01k5w0000000000000000000cd",
				TrustDomain: "compute.example.com", Role: "node", Generation: 1, AllowedKinds: []string{"node.reboot", "fabric.*"},
				NextPins: identity.NextPins{ServingCA: pin.Set{pin.OfSPKI([]byte("next"))}},
				JoinedAt: time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC), IssuedAt: time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC),
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(id.Chain) != 1 || len(id.NodeCA.Certificates()) != 1 || len(id.CommandTrust.Certificates()) != 1 {
				t.Errorf("%d in the chain, %d node CAs, %d command CAs", len(id.Chain), len(id.NodeCA), len(id.CommandTrust))
			}
		})
	}
}

// Every state of a reset that version 2 could leave is understood and finished.
func TestVersion2(t *testing.T) {
	const suffix = ".reset-20210304T050607Z"
	moved := []string{
		"identity.json" + suffix, "journal.db" + suffix, "journal.db" + suffix + "-journal", "journal.db" + suffix + "-shm",
		"journal.db" + suffix + "-wal", "node.key" + suffix, "node.key.next" + suffix,
	}
	journal := []string{"journal.db", "journal.db-journal", "journal.db-shm", "journal.db-wal"}
	for name, tc := range map[string]struct {
		loads      bool   // before recovery
		generation uint64 // after it; 0 is none
		files      []string
	}{
		"reset-begun":     {true, 1, append([]string{"identity.json", "join-pending.json", "join.key", "node.key"}, journal...)},
		"reset-answered":  {true, 2, append([]string{"identity.json", "node.key"}, moved...)},
		"reset-moving":    {false, 2, append([]string{"identity.json", "node.key"}, moved...)},
		"reset-moved":     {false, 2, append([]string{"identity.json", "node.key"}, moved...)},
		"reset-committed": {true, 2, append([]string{"identity.json", "node.key"}, moved...)},
		"move-moving":     {false, 0, moved},
	} {
		t.Run(name, func(t *testing.T) {
			path := copyDir(t, filepath.Join(fixturesV2, name))
			s := openStore(t, path)
			if _, _, err := s.Load(); (err == nil) != tc.loads || err != nil && !fault.Is(err, fault.NoIdentity) {
				t.Errorf("load: %v", err)
			}
			if err := s.Recover(); err != nil {
				t.Fatal(err)
			}
			wantFiles(t, path, append(tc.files, "lock")...)
			id, _, err := s.Load()
			if tc.generation == 0 {
				if !fault.Is(err, fault.NoIdentity) {
					t.Errorf("load after recovery: %v", err)
				}
			} else if err != nil || id.Generation != tc.generation {
				t.Errorf("load after recovery: %+v, %v", id, err)
			}
		})
	}
}

func seed(f *testing.F, file string) {
	f.Helper()
	files, err := filepath.Glob(filepath.Join(fixtures, "..", "v?", "*", file))
	if err != nil || len(files) == 0 {
		f.Fatalf("%v, %v", files, err)
	}
	for _, name := range files {
		data := must(os.ReadFile(name))
		f.Add(data)
		f.Add(bytes.Replace(data, []byte(`"generation": 1`), []byte(`"nextPins": {}, "allowedKinds": []`), 1))
	}
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":2,"chain":7}`))
	f.Add([]byte(`{"version":2,"reset":true,"resetSuffix":".reset-20210304T050607Z-1"}`))
	f.Add([]byte(`{"version":1,"chain":[null],"csr":null,"answer":{}}`))
}

// Whatever identity.json holds, reading it is an error or gives an identity that is written as it is read.
func FuzzIdentity(f *testing.F) {
	seed(f, "identity.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		id, err := identity.ParseIdentity(data)
		if err != nil {
			return
		}
		if id.Leaf() == nil || id.NodeID == "" {
			t.Error("an identity without a leaf or a name")
		}
		_ = identity.ScheduleOf(id)
		_ = id.NodeCA.Pool()
		again, err := identity.ParseIdentity(must(identity.Encode(id)))
		if err != nil || !cmp.Equal(id, again, cmp.Comparer(sameInstant), cmpopts.EquateEmpty()) {
			t.Errorf("%v\n%s", err, cmp.Diff(id, again))
		}
	})
}

func FuzzPending(f *testing.F) {
	seed(f, "join-pending.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := identity.ParsePending(data)
		if err != nil {
			return
		}
		again, err := identity.ParsePending(must(identity.Encode(p)))
		if err != nil || again.Attestor != p.Attestor || again.RequestID != p.RequestID || !cmp.Equal(again.CSR, p.CSR) || (again.Answer == nil) != (p.Answer == nil) {
			t.Errorf("%v", err)
		}
	})
}

func sameInstant(a, b time.Time) bool { return a.Equal(b) }
