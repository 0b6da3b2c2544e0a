package main

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/approvals"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/gateway"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// world is what a script's machine meets.
type world struct {
	t     *testing.T // of all scripts: what it cleans up lasts until the last one ended
	cp    *controlplanetest.ControlPlane
	clock *controlplanetest.Clock
	asked atomic.Int64 // requests that the API got

	tpm *tpmkeytest.TPM

	dir, picture string // of the last snapshot
}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(world{}).(*world) }

func duration(ts *testscript.TestScript, s string) time.Duration {
	d, err := time.ParseDuration(s)
	ts.Check(err)
	return d
}

// startControlPlane starts the control plane: controlplane [born=-1h] [clock=10m] [ttl=5s] [discovery=always] [tpm=list]. born is when
// its PKI was made, clock how far its clock is ahead of the machine's, discovery the rule of the attestor, and
// tpm takes machines by their TPM: list by the allow-list, enroll by approval too.
func startControlPlane(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	w.clock = &controlplanetest.Clock{}
	o := controlplanetest.Options{Clock: w.clock, AnswerAtOnce: true}
	var born, ahead time.Duration
	for _, arg := range args {
		switch name, value, _ := strings.Cut(arg, "="); name {
		case "born":
			born = duration(ts, value)
		case "clock":
			ahead = duration(ts, value)
		case "ttl":
			o.CertTTL = duration(ts, value)
		case "discovery":
			o.Attestors.Discovery = &controlplane.DiscoveryConfig{Approval: joinservice.ApprovalRule(value)}
		case "tpm":
			o.Attestors.TPM = &controlplane.TPMConfig{Enrollment: value == "enroll"}
		default:
			ts.Fatalf("controlplane: unknown option %q", arg)
		}
	}
	w.clock.Advance(born + ahead)
	w.cp = controlplanetest.Start(w.t, o)
	ts.Defer(func() { w.cp.Stop(w.t) })
	w.clock.Advance(-born)
	ts.Setenv("GATEWAY", w.cp.GatewayURL)
	ts.Setenv("SERVING_PIN", w.cp.Pins.ServingCA.String())
	ts.Setenv("SIGNING_PIN", w.cp.Pins.JoinSigning.String())
	ts.Setenv("ENCRYPTION_PIN", w.cp.Pins.JoinEncryption.String())
}

// writeConfig writes the configuration of a machine to a new folder: config dir. Its state will be in dir/data.
func writeConfig(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	dir := ts.MkAbs(args[0])
	ts.Check(os.Mkdir(dir, 0o700))
	w.cp.WriteConfig(w.t, dir, w.cp.GatewayURL, fmt.Sprintf("data_dir = %q\nhost_root = %q\n[tpm]\nmode = \"off\"\n[status]\nsocket = %q\n",
		filepath.Join(dir, "data"), ts.Getenv("HOST"), filepath.Join(dir, "s.sock")))
}

// makeToken makes a token in a file of mode 0600: token file [uses].
func makeToken(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	uses := int64(1)
	if len(args) > 1 {
		var err error
		uses, err = strconv.ParseInt(args[1], 10, 64)
		ts.Check(err)
	}
	token := w.cp.NewToken(w.t, tokens.CreateRequest{MaxUses: &uses, IdempotencyKey: args[0]})
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(token+"\n"), 0o600))
}

// makeReclaimToken makes a token that lets a known machine join again, in a file of mode 0600: reclaim file.
func makeReclaimToken(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	token := w.cp.NewToken(w.t, tokens.CreateRequest{AllowReclaim: true, IdempotencyKey: args[0]})
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(token+"\n"), 0o600))
}

// makeDiscoveryToken makes a token for the recorded server's first address, in a file of mode 0600: discovery file.
func makeDiscoveryToken(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	token := w.cp.IssueToken(w.t, tokens.IssueRequest{Role: store.TokenDiscovery, MAC: "70:b5:e8:00:50:28"})
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(token+"\n"), 0o600))
}

// makeSiteToken makes a site token in a file of mode 0600: sitetoken file.
func makeSiteToken(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	token := w.cp.IssueToken(w.t, tokens.IssueRequest{Role: store.TokenSite})
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(token+"\n"), 0o600))
}

// makeProvisionedToken makes a token for the system that a deploy installed on the only node, in a file of mode 0600, and
// puts the node's id into NODE: provisioned file.
func makeProvisionedToken(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	var node string
	w.cp.Read(w.t, func(tx *store.Tx) error {
		nodes, err := tx.NodesOfTenant(w.cp.Tenant, "", 2)
		if err == nil && len(nodes) != 1 {
			err = fmt.Errorf("there are %d nodes, want 1", len(nodes))
		}
		if err == nil {
			node = nodes[0].ID
		}
		return err
	})
	token := w.cp.IssueToken(w.t, tokens.IssueRequest{Role: store.TokenProvisioned, NodeID: node})
	ts.Setenv("NODE", node)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(token+"\n"), 0o600))
}

// vouched waits until a boot lease of a machine is recorded: vouched mac epoch.
func vouched(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	var got store.Vouch
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		err := w.cp.Store().Read(w.t.Context(), func(tx *store.Tx) (err error) { got, err = tx.Vouch(w.cp.Site, args[0]); return err })
		if err == nil && strconv.FormatInt(got.BootLeaseEpoch, 10) == args[1] {
			return
		}
	}
	ts.Fatalf("recorded %+v", got)
}

// approve approves every join request that waits: approve.
func approve(ts *testscript.TestScript, _ bool, _ []string) {
	w := worldOf(ts)
	s := &approvals.Service{Store: w.cp.Store()}
	page, err := s.List(w.t.Context(), approvals.ListRequest{TenantID: w.cp.Tenant, PoolID: w.cp.Pool})
	ts.Check(err)
	if len(page.Requests) == 0 {
		ts.Fatalf("no join request waits")
	}
	for _, r := range page.Requests {
		_, err := s.Approve(w.t.Context(), "operator", approvals.ApproveRequest{TenantID: w.cp.Tenant, PoolID: w.cp.Pool, RequestID: r.ID})
		ts.Check(err)
	}
}

// usesLeft checks a token: usesleft 1 file.
func usesLeft(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	id, _, _ := strings.Cut(strings.TrimPrefix(ts.ReadFile(args[1]), "bcjt_"), ".")
	if got := strconv.FormatInt(w.cp.Token(w.t, id).UsesLeft, 10); got != args[0] {
		ts.Fatalf("%s uses left, want %s", got, args[0])
	}
}

// joined checks how many machines joined: joined 1.
func joined(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	n := 0
	for _, e := range w.cp.Events(w.t) {
		if e.Type == events.TypeNodeJoined {
			n++
		}
	}
	if strconv.Itoa(n) != args[0] {
		ts.Fatalf("%d machines joined, want %s", n, args[0])
	}
}

// anotherHost makes the tree of another server: another dir.
func anotherHost(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	ts.Check(os.CopyFS(dir, os.DirFS(ts.Getenv("HOST"))))
	sum := sha256.Sum256([]byte(dir))
	for file, value := range map[string]string{
		"product_uuid":   fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]),
		"product_serial": fmt.Sprintf("%X", sum[16:22]),
	} {
		ts.Check(os.WriteFile(filepath.Join(dir, "sys/class/dmi/id", file), []byte(value+"\n"), 0o600))
	}
}

// revoke revokes every node's certificates: revoke.
func revoke(ts *testscript.TestScript, _ bool, _ []string) {
	w := worldOf(ts)
	w.cp.Write(w.t, func(tx *store.Tx) error {
		nodes, err := tx.NodesOfTenant(w.cp.Tenant, "", 100)
		for _, n := range nodes {
			if _, err := tx.RevokeCerts(n.ID, 1<<40, "revoked"); err != nil {
				return err
			}
		}
		return err
	})
}

// setGateway stops or starts the gateway: gateway stop, gateway start; or starts one more and puts its URL into GATEWAY:
// gateway expired has a certificate that is over.
func setGateway(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	switch args[0] {
	case "stop":
		w.cp.StopGateway(w.t)
	case "start":
		w.cp.StartGateway(w.t)
	case "expired":
		c, err := w.cp.Bundle.IssueGateway([]string{"127.0.0.1"}, time.Now().AddDate(-2, 0, 0))
		ts.Check(err)
		pair := c.TLS()
		ts.Setenv("GATEWAY", w.cp.Gateway(w.t, func(o *gateway.Options) {
			o.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }
		}))
	default:
		ts.Fatalf("gateway: unknown argument %q", args[0])
	}
}

// startPeer starts what is no gateway and puts its URL into PEER: peer http1, a web server that speaks no HTTP/2; peer
// https, one that does; peer text, a server that greets in clear; peer mute, one that says nothing and hangs up.
func startPeer(ts *testscript.TestScript, _ bool, args []string) {
	if args[0] == "http1" {
		server := httptest.NewTLSServer(http.NotFoundHandler())
		ts.Defer(server.Close)
		ts.Setenv("PEER", server.URL)
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	ts.Setenv("PEER", "https://"+l.Addr().String())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if args[0] == "text" {
				fmt.Fprint(c, "220 mail.example.com ESMTP\r\n")
				time.Sleep(100 * time.Millisecond) // or the reset outruns the greeting
			}
			c.Close()
		}
	}()
}

// startAPI serves the control plane's API over HTTPS. It puts the URL into SERVER and writes the CA certificate to a
// file: api ca.pem.
func startAPI(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	target, err := url.Parse(w.cp.Server().APIURL())
	ts.Check(err)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: target.Scheme, Host: target.Host})
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.asked.Add(1)
		if r.URL.Path != target.Path+"/.well-known/better-compute" {
			w.t.Errorf("bcd asked for %s", r.URL.Path)
		}
		proxy.ServeHTTP(rw, r)
	}))
	ts.Defer(server.Close)
	ts.Setenv("SERVER", server.URL+target.Path)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
}

// asked checks how many requests the API got: asked 0.
func asked(ts *testscript.TestScript, _ bool, args []string) {
	if got := strconv.FormatInt(worldOf(ts).asked.Load(), 10); got != args[0] {
		ts.Fatalf("the API got %s requests, want %s", got, args[0])
	}
}
