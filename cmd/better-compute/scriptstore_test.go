package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/better-compute/bcd/controlplane/acceptance"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
)

// These commands do to a server's database what machines do. They open the file beside the running server.

// database runs fn in the database of a server's directory, at a time.
func database(ts *testscript.TestScript, dir string, now time.Time, fn func(*store.Tx) error) {
	ctx := context.Background()
	db, err := store.Open(ctx, store.Options{
		Path: filepath.Join(ts.MkAbs(dir), "control-plane.db"), Now: func() time.Time { return now },
	})
	ts.Check(err)
	err = db.Write(ctx, fn)
	ts.Check(db.Close())
	ts.Check(err)
}

// spend takes a use of a token, as a join does: spend dir token.
func spend(ts *testscript.TestScript, _ bool, args []string) {
	database(ts, args[0], time.Now(), func(tx *store.Tx) error { return tx.SpendToken(args[1]) })
}

// expired adds a token that ended an hour ago, and puts its id into a variable: expired dir pool VARIABLE.
func expired(ts *testscript.TestScript, _ bool, args []string) {
	past := time.Now().Add(-2 * time.Hour)
	database(ts, args[0], past, func(tx *store.Tx) error {
		p, err := tx.Pool(args[1])
		if err != nil {
			return err
		}
		t := store.Token{
			ID: tx.NewID(store.PrefixToken), TenantID: p.TenantID, PoolID: p.ID, SiteID: p.SiteID, Role: store.TokenNode,
			MaxUses: 1, CreatedBy: "test", ExpiresAt: past.Add(time.Hour),
		}
		ts.Setenv(args[2], t.ID)
		return tx.InsertToken(t)
	})
}

// record adds a node with a certificate and a refused join of somebody who tries to write to the operator's terminal:
// record dir pool VARIABLE.
func record(ts *testscript.TestScript, _ bool, args []string) {
	database(ts, args[0], time.Now(), func(tx *store.Tx) error {
		p, err := tx.Pool(args[1])
		if err != nil {
			return err
		}
		id := tx.NewID(store.PrefixNode)
		ts.Setenv(args[2], id)
		err = tx.InsertNode(store.Node{
			ID: id, TenantID: p.TenantID, PoolID: p.ID, SiteID: p.SiteID, Role: store.RoleNode, State: store.NodeAdopting,
			Trust: store.TrustPlatform, IdentityGeneration: 1, HardwareKeyTrusted: true, HardwareKey: []byte(id),
			Claims: hwclaims.Claims{Hostname: "evil\x1b[2J\nhost"},
		})
		if err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(id))
		err = tx.InsertCert(store.Cert{
			Serial: "a1", NodeID: id, Generation: 1, Role: "node", SPKISHA256: sum, CSRSHA256: sum, DER: sum[:], Issuers: sum[:],
			NotBefore: tx.Now(), NotAfter: tx.Now().Add(time.Hour),
		})
		if err != nil {
			return err
		}
		return tx.Publish(p.TenantID, events.JoinRefused{
			Attestor: "join-token", Reason: "join-token:exhausted", Role: "node\x1b[2J\nrole", CSRSHA256: fmt.Sprintf("%x", sum),
		})
	})
}

// loadLines reads a file of JSON lines.
func loadLines(path string) ([]map[string]any, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []map[string]any
	for d := json.NewDecoder(f); d.More(); {
		var line map[string]any
		if err := d.Decode(&line); err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// jsonlines checks that a file is JSON, one object a line, at least so many: jsonlines 2 stdout.
func jsonlines(ts *testscript.TestScript, _ bool, args []string) {
	path := filepath.Join(ts.Getenv("WORK"), ".jsonlines")
	ts.Check(os.WriteFile(path, []byte(ts.ReadFile(args[1])), 0o600))
	lines, err := loadLines(path)
	ts.Check(err)
	var want int
	_, err = fmt.Sscan(args[0], &want)
	ts.Check(err)
	if len(lines) < want {
		ts.Fatalf("%d lines, want %d", len(lines), want)
	}
}

// condemn lets a node's acceptance fail with a message, in Go's spelling: condemn dir node message.
func condemn(ts *testscript.TestScript, _ bool, args []string) {
	message, err := strconv.Unquote(`"` + args[2] + `"`)
	ts.Check(err)
	database(ts, args[0], time.Now(), func(tx *store.Tx) error {
		return tx.SetNodeConditions(args[1], []store.Condition{{Type: acceptance.ConditionFailed, Message: message, Since: tx.Now()}})
	})
}

// waits adds a machine that waits for a decision, and that tries to write to the operator's terminal: waits dir pool VARIABLE.
func waits(ts *testscript.TestScript, _ bool, args []string) {
	database(ts, args[0], time.Now(), func(tx *store.Tx) error {
		p, err := tx.Pool(args[1])
		if err != nil {
			return err
		}
		id := tx.NewID(store.PrefixJoinRequest)
		ts.Setenv(args[2], id)
		return tx.InsertJoinRequest(store.JoinRequest{
			ID: id, TenantID: p.TenantID, SiteID: p.SiteID, Attestor: "discovery", Role: store.RoleRamdisk, MachineKey: id,
			Claims: hwclaims.Claims{ProductSerial: "SN\x1b[2J", Vendor: "Dell\nInc.", ProductName: "R750", Hostname: "\u202egnp.exe"},
			MAC:    "70:b5:e8:00:50:28", IP: "192.0.2.7", VouchedBy: "node_01k5w0000000000000000000s1", ClaimedEpoch: 7,
			CSRSHA256: sha256.Sum256([]byte("CSR")), ExpiresAt: tx.Now().Add(time.Hour),
		})
	})
}
