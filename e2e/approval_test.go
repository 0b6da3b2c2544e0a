package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/approvals"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
)

// ramdisk is a machine that booted from the network, as a process of its own with a clock that the test moves. Only a
// module of the control plane can make its token, so the control plane runs in the test's process.
type ramdisk struct {
	*machine
	cp     *controlplanetest.ControlPlane
	token  string // the file
	asking time.Duration
}

func newRamdisk(t *testing.T, cp *controlplanetest.ControlPlane) *ramdisk {
	t.Helper()
	r := &ramdisk{machine: &machine{t: t, program: build(t, "./cmd/bcd", "testclock"), dir: shortDir(t)}, cp: cp}
	host := filepath.Join(r.dir, "host")
	if err := os.CopyFS(host, os.DirFS(recordedHost)); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(r.dir))
	r.write("host/sys/class/dmi/id/product_uuid", fmt.Sprintf("%x-%x-%x-%x-%x\n", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]))
	r.write("host/sys/class/dmi/id/product_serial", fmt.Sprintf("%X\n", sum[16:22]))
	cp.WriteConfig(t, r.dir, cp.GatewayURL, fmt.Sprintf("data_dir = %q\nhost_root = %q\n%s[status]\nsocket = %q\n",
		r.data(), host, keyInFile, filepath.Join(r.dir, "status.sock")))
	r.write("token", cp.IssueToken(t, tokens.IssueRequest{Role: store.TokenDiscovery, MAC: "70:b5:e8:00:50:28"}))
	r.token = filepath.Join(r.dir, "token")
	r.env = environment("BC_CLOCK_OFFSET=" + filepath.Join(r.dir, "offset"))
	r.later()
	return r
}

// later moves the machine's clock past the next time that its join asks.
func (r *ramdisk) later() {
	r.t.Helper()
	r.asking += 40 * time.Second
	r.write("offset.next", r.asking.String())
	if err := os.Rename(filepath.Join(r.dir, "offset.next"), filepath.Join(r.dir, "offset")); err != nil {
		r.t.Fatal(err)
	}
}

// waits starts a join and waits until it waits.
func (r *ramdisk) waits() *process {
	r.t.Helper()
	p := start(r.t, r.env, r.program, "join", "--config", filepath.Join(r.dir, "config.toml"), "--attestor", "discovery",
		"--boot-mac", "70:b5:e8:00:50:28", "--token-file", r.token)
	p.waitFor("waiting for approval: jreq_", 1)
	return p
}

// ends waits until a process ended with the exit status.
func (r *ramdisk) ends(p *process, exit int) {
	r.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		r.t.Fatalf("it still runs:\n%s", p)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != exit {
		r.t.Fatalf("exit status %d, want %d:\n%s", got, exit, p)
	}
}

// decide decides about the one request that waits.
func decide(t *testing.T, cp *controlplanetest.ControlPlane, approve bool) {
	t.Helper()
	s := &approvals.Service{Store: cp.Store()}
	page, err := s.List(t.Context(), approvals.ListRequest{TenantID: cp.Tenant, PoolID: cp.Pool})
	if err != nil || len(page.Requests) != 1 {
		t.Fatalf("join requests %+v, %v", page.Requests, err)
	}
	id := page.Requests[0].ID
	if approve {
		_, err = s.Approve(t.Context(), "operator", approvals.ApproveRequest{TenantID: cp.Tenant, PoolID: cp.Pool, RequestID: id})
	} else {
		_, err = s.Reject(t.Context(), "operator", approvals.RejectRequest{TenantID: cp.Tenant, PoolID: cp.Pool, RequestID: id})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func startApprovals(t *testing.T) *controlplanetest.ControlPlane {
	t.Helper()
	return controlplanetest.Start(t, controlplanetest.Options{
		AnswerAtOnce: true, Attestors: controlplane.AttestorsConfig{Discovery: &controlplane.DiscoveryConfig{Approval: joinservice.ApproveAlways}},
	})
}

// A join waits through kill -9, an order to stop and a gateway that restarts; once it is approved, the next time that
// it asks it is in. It says once what it waits for.
// Req: AP-004 AP-005
func TestJoinWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	cp := startApprovals(t)
	r := newRamdisk(t, cp)
	p := r.waits()
	p.kill()
	key := r.state("join.key")

	p = r.waits()
	begun := time.Now()
	p.signal(syscall.SIGTERM)
	r.ends(p, 130)
	if took := time.Since(begun); took > 3*time.Second || !strings.HasSuffix(p.String(), "bcd: interrupted\n") {
		t.Errorf("it took %s to stop:\n%s", took, p)
	}

	p = r.waits()
	cp.StopGateway(t)
	r.later()
	p.waitFor(`msg="retry join"`, 1)
	cp.StartGateway(t)
	p.waitFor(`msg="reach gateway again"`, 1)
	decide(t, cp, true)
	r.later()
	r.ends(p, 0)
	said := p.String()
	if strings.Count(said, "waiting for approval") != 1 || strings.Count(said, "retry join") != 1 || !strings.Contains(said, "joined: node_") {
		t.Errorf("it says:\n%s", said)
	}
	if r.state("node.key") != key {
		t.Error("the key is another one")
	}
	if _, err := os.Stat(r.token); !os.IsNotExist(err) {
		t.Error("the token's file is there")
	}

	daemon := r.node()
	daemon.waitFor(`msg="open session"`, 1)
	daemon.stop()
}

// An operator's no ends the wait, and files no other request.
func TestJoinThatWaitsIsRejected(t *testing.T) {
	t.Parallel()
	cp := startApprovals(t)
	r := newRamdisk(t, cp)
	p := r.waits()
	decide(t, cp, false)
	r.later()
	r.ends(p, 77)
	if said := p.String(); !strings.Contains(said, "\nbcd: cannot join: the join request jreq_") ||
		!strings.Contains(said, " was not approved (it was rejected, nobody decided in time, or its token is good no more): Join refused (ACCESS_DENIED)\nhint: ") {
		t.Errorf("it says:\n%s", said)
	}
	s := &approvals.Service{Store: cp.Store()}
	page, err := s.List(t.Context(), approvals.ListRequest{TenantID: cp.Tenant, PoolID: cp.Pool, State: approvals.StateAll})
	if err != nil || len(page.Requests) != 1 {
		t.Errorf("join requests %+v, %v", page.Requests, err)
	}
}
