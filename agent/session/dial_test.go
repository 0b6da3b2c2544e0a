package session_test

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/better-compute/bcd/agent/session"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
)

// answers is a gateway whose answers a test sets. It counts the calls.
type answers struct {
	daemonv1.UnimplementedNodeGatewayServer
	calls   atomic.Int32
	join    func(*daemonv1.JoinRequest) (*daemonv1.JoinResponse, error)
	session func(daemonv1.NodeGateway_SessionServer) error
}

func (a *answers) Join(_ context.Context, r *daemonv1.JoinRequest) (*daemonv1.JoinResponse, error) {
	a.calls.Add(1)
	return a.join(r)
}

func (a *answers) Session(s daemonv1.NodeGateway_SessionServer) error { return a.session(s) }

func dial(t *testing.T, g session.Gateway, cert *tls.Certificate) (*session.Client, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	c, err := session.Dial(ctx, g, cert)
	if c != nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// A gateway that is not the pinned one is known before anything is sent to it.
// Req: JF-018
func TestGatewayIsAuthenticated(t *testing.T) {
	ca, other := newAuthority(t, "serving"), newAuthority(t, "other")
	foreign := other.leaf(t, nil) // stands before the pinned CA, which did not issue it
	foreign.Certificate = [][]byte{foreign.Certificate[0], ca.cert.Raw}
	long := ca.leaf(t, nil)
	for len(long.Certificate) <= 8 {
		long.Certificate = append(long.Certificate, newAuthority(t, "filler").cert.Raw)
	}
	alone := ca.leaf(t, nil)
	alone.Certificate = alone.Certificate[:1]
	for name, c := range map[string]struct {
		cert *tls.Certificate
		code fault.Code
		say  string
	}{
		"pinned":                  {cert: ca.leaf(t, nil)},
		"another CA":              {other.leaf(t, nil), fault.Verification, "no certificate that the gateway presents has the pinned serving CA key"},
		"leaf of another CA":      {foreign, fault.Verification, "does not verify"},
		"another name":            {ca.leaf(t, func(c *x509.Certificate) { c.DNSNames = []string{"other.test"} }), fault.Verification, "another name"},
		"expired":                 {ca.leaf(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), fault.Verification, "outside its dates"},
		"not yet valid":           {ca.leaf(t, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), fault.Verification, "outside its dates"},
		"a client's certificate":  {ca.leaf(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), fault.Verification, "does not verify"},
		"a chain without end":     {long, fault.Verification, "presents 9 certificates"},
		"the CA is not presented": {alone, fault.Verification, "no certificate that the gateway presents"},
	} {
		t.Run(name, func(t *testing.T) {
			api := &answers{}
			_, err := dial(t, gatewayAt(serve(t, serverConfig(c.cert), api), ca), nil)
			if fault.CodeOf(err) != c.code || err != nil && !strings.Contains(err.Error(), c.say) {
				t.Errorf("error %q with code %s, want %s with %q", err, fault.CodeOf(err), c.code, c.say)
			}
			if err != nil && fault.HintOf(err) == "" {
				t.Error("no hint")
			}
			if api.calls.Load() != 0 {
				t.Error("something was sent")
			}
		})
	}
}

// A pin names a CA. A gateway whose own key is pinned by mistake, or whose key was pinned by somebody who has it, is none.
func TestPinOfALeafIsNoPinOfACA(t *testing.T) {
	ca := newAuthority(t, "serving")
	leaf := ca.leaf(t, nil)
	g := gatewayAt(serve(t, serverConfig(leaf), &answers{}), ca)
	g.ServingCA = pin.Set{pin.OfCertificate(leaf.Leaf)}
	if _, err := dial(t, g, nil); fault.CodeOf(err) != fault.Verification {
		t.Errorf("error %v", err)
	}
}

func TestOlderTLSIsRefused(t *testing.T) {
	ca := newAuthority(t, "serving")
	config := serverConfig(ca.leaf(t, nil))
	config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, err := dial(t, gatewayAt(serve(t, config, &answers{}), ca), nil); fault.CodeOf(err) != fault.Verification || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("error %v", err)
	}
}

// During a rotation a second pin is honoured.
func TestAnyPinOfTheSetWillDo(t *testing.T) {
	ca := newAuthority(t, "serving")
	g := gatewayAt(serve(t, serverConfig(ca.leaf(t, nil)), &answers{}), ca)
	g.ServingCA = pin.Set{pin.OfSPKI([]byte("old"))}.With(g.ServingCA...)
	if _, err := dial(t, g, nil); err != nil {
		t.Error(err)
	}
}

// An IP address in gateway_url is checked against the certificate's IP addresses.
func TestServerNameMayBeAnAddress(t *testing.T) {
	ca := newAuthority(t, "serving")
	g := gatewayAt(serve(t, serverConfig(ca.leaf(t, nil)), &answers{}), ca)
	g.ServerName = "127.0.0.1"
	if _, err := dial(t, g, nil); err != nil {
		t.Error(err)
	}
	g.ServerName = "127.0.0.2"
	if _, err := dial(t, g, nil); fault.CodeOf(err) != fault.Verification {
		t.Errorf("another address: %v", err)
	}
}

// What stands behind the port and is no gateway is named for what it is.
func TestOtherServersBehindThePort(t *testing.T) {
	ca := newAuthority(t, "serving")
	leaf := ca.leaf(t, nil)
	http1 := func() string {
		l := listen(t)
		config := serverConfig(leaf)
		config.NextProtos = []string{"http/1.1"}
		s := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
		go func() { _ = s.Serve(tls.NewListener(l, config)) }()
		t.Cleanup(func() { s.Close() })
		return l.Addr().String()
	}
	noALPN := func() string {
		l := listen(t)
		config := serverConfig(leaf)
		config.NextProtos = nil
		go func() {
			for {
				c, err := tls.NewListener(l, config).Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(io.Discard, c) }()
			}
		}()
		return l.Addr().String()
	}
	plain := func(greeting string) string {
		l := listen(t)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, greeting)
				c.Close()
			}
		}()
		return l.Addr().String()
	}
	for name, c := range map[string]struct {
		address string
		code    fault.Code
		say     string
	}{
		"HTTP/1 over TLS":     {http1(), fault.Verification, "does not speak HTTP/2"},
		"TLS without h2":      {noALPN(), fault.Verification, "does not speak HTTP/2"},
		"SSH":                 {plain("SSH-2.0-OpenSSH_9.2\r\n"), fault.Verification, "does not speak TLS"},
		"HTTP":                {plain("HTTP/1.1 400 Bad Request\r\n\r\n"), fault.Verification, "does not speak TLS"},
		"a port that closes":  {plain(""), fault.Unreachable, "handshake"},
		"an alert of anybody": {plain("\x15\x03\x03\x00\x02\x02\x31"), fault.Verification, "ended TLS with an alert: access denied"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := dial(t, gatewayAt(c.address, ca), nil)
			if fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.say) {
				t.Errorf("error %q with code %s, want %s with %q", err, fault.CodeOf(err), c.code, c.say)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	ca := newAuthority(t, "serving")
	l := listen(t)
	closed := l.Addr().String()
	l.Close()
	silent := listen(t) // accepts, and never answers
	for name, address := range map[string]string{"refused": closed, "silent": silent.Addr().String(), "no such name": "no-such-host.invalid:443"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := session.Dial(ctx, gatewayAt(address, ca), nil)
			if fault.CodeOf(err) != fault.Unreachable || fault.HintOf(err) == "" {
				t.Errorf("error %q with code %s", err, fault.CodeOf(err))
			}
			if strings.Contains(err.Error(), "desc =") {
				t.Errorf("gRPC's wrapping is left in %q", err)
			}
		})
	}
}

// With TLS 1.3 a client learns only at its first read that its certificate is refused.
func TestRefusedClientCertificateIsNamed(t *testing.T) {
	ca, nodes, other := newAuthority(t, "serving"), newAuthority(t, "nodes"), newAuthority(t, "other nodes")
	pool := x509.NewCertPool()
	pool.AddCert(nodes.cert)
	config := serverConfig(ca.leaf(t, nil))
	config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, pool
	g := gatewayAt(serve(t, config, &answers{}), ca)
	for name, c := range map[string]struct {
		cert *tls.Certificate
		say  string
	}{
		"expired":      {nodes.leaf(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), "has expired"},
		"another CA's": {other.leaf(t, nil), "does not know the CA"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := session.Open(t.Context(), g, c.cert, &daemonv1.Hello{})
			if fault.CodeOf(err) != session.CertificateRefused || !strings.Contains(err.Error(), c.say) {
				t.Errorf("error %q with code %s, want %q", err, fault.CodeOf(err), c.say)
			}
		})
	}
}

// An alert says that the node's certificate is refused only where the gateway is authenticated and was shown one: to a join, or
// from anybody on the way, it is no refusal.
func TestAlertThatIsNoRefusal(t *testing.T) {
	ca, nodes := newAuthority(t, "serving"), newAuthority(t, "nodes")
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "\x15\x03\x03\x00\x02\x02\x2c") // an alert in clear text, "revoked certificate"
			c.Close()
		}
	}()
	_, err := session.Open(t.Context(), gatewayAt(l.Addr().String(), ca), nodes.leaf(t, nil), &daemonv1.Hello{})
	if fault.CodeOf(err) != fault.Verification || !strings.Contains(err.Error(), "revoked certificate") {
		t.Errorf("from anybody: %v with code %s", err, fault.CodeOf(err))
	}

	config := serverConfig(ca.leaf(t, nil))
	config.ClientAuth = tls.RequireAnyClientCert
	gateway := gatewayAt(serve(t, config, &answers{}), ca)
	for range 50 {
		c, err := dial(t, gateway, nil)
		if err == nil {
			_, err = c.Join(t.Context(), &daemonv1.JoinRequest{})
		}
		if fault.Is(err, fault.Unreachable) {
			continue // the gateway closed before the request was written, and the system threw its alert away
		}
		if fault.CodeOf(err) != fault.Verification || !strings.Contains(err.Error(), "certificate required") {
			t.Errorf("without a certificate: %v with code %s", err, fault.CodeOf(err))
		}
		return
	}
	t.Error("without a certificate: the alert was never seen")
}

func refusal(t *testing.T, code codes.Code, reason, message string, retry time.Duration) error {
	t.Helper()
	s := status.New(code, message)
	details := []proto.Message{&errdetails.ErrorInfo{Reason: reason, Domain: "better-compute"}}
	if retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	}
	var err error
	for _, d := range details {
		if s, err = s.WithDetails(d.(interface {
			proto.Message
			Reset()
			String() string
			ProtoMessage()
		})); err != nil {
			t.Fatal(err)
		}
	}
	return s.Err()
}

// Code and message of the control plane are shown as they are, and decide the exit status.
// Req: JF-088 RF-030
func TestControlPlaneErrors(t *testing.T) {
	ca := newAuthority(t, "serving")
	api := &answers{}
	c, err := dial(t, gatewayAt(serve(t, serverConfig(ca.leaf(t, nil)), api), ca), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		answer error
		code   fault.Code
		exit   int
		text   string
		retry  time.Duration
	}{
		{refusal(t, codes.PermissionDenied, "ACCESS_DENIED", "Join refused", 0), fault.AccessDenied, 77, "Join refused (ACCESS_DENIED)", 0},
		{refusal(t, codes.Aborted, "CONFLICT", "This machine joined concurrently; retry", 0), fault.Conflict, 75, "This machine joined concurrently; retry (CONFLICT)", 0},
		{refusal(t, codes.FailedPrecondition, "INVALID_CONFIG", "JoinService has no keys", 0), fault.InvalidConfig, 1, "JoinService has no keys (INVALID_CONFIG)", 0},
		{refusal(t, codes.ResourceExhausted, "RATE_LIMITED", "Too many", 7*time.Second), fault.RateLimited, 75, "Too many (RATE_LIMITED)", 7 * time.Second},
		{status.Error(codes.Unimplemented, "unknown method"), fault.Failed, 1, "the gateway answered Unimplemented: unknown method", 0},
		{status.Error(codes.Unavailable, "draining"), fault.Unreachable, 75, "draining", 0},
		// What a gateway may not do: choose the daemon's own codes, send a node away for good, write on a terminal or fill a disk.
		{refusal(t, codes.FailedPrecondition, "NO_IDENTITY", "never joined", 0), fault.Failed, 1, "the gateway answered FailedPrecondition: never joined", 0},
		{refusal(t, codes.Unavailable, "CONFIG", "draining", 0), fault.Unreachable, 75, "draining", 0},
		{refusal(t, codes.ResourceExhausted, "RATE_LIMITED", "Too many", 365*24*time.Hour), fault.RateLimited, 75, "Too many", session.MaxPause},
		{refusal(t, codes.ResourceExhausted, "", "message larger than max", 0), fault.Failed, 1, "larger than max", 0},
		{refusal(t, codes.PermissionDenied, "ACCESS_DENIED", "No\x1b[2J\nhint: run this", 0), fault.AccessDenied, 77, `No\x1b[2J\nhint: run this (ACCESS_DENIED)`, 0},
		{refusal(t, codes.PermissionDenied, "ACCESS_DENIED", strings.Repeat("x", 4096), 0), fault.AccessDenied, 77, strings.Repeat("x", 512) + "… (ACCESS_DENIED)", 0},
		{status.Error(codes.Internal, strings.Repeat("x", 1<<20)), fault.Failed, 1, "the gateway answered Internal: ", 0},
	} {
		api.join = func(*daemonv1.JoinRequest) (*daemonv1.JoinResponse, error) { return nil, want.answer }
		_, err := c.Join(t.Context(), &daemonv1.JoinRequest{})
		if got := fault.CodeOf(err); got != want.code || got.Exit() != want.exit {
			t.Errorf("%v: code %s, exit %d; want %s, %d", want.answer, got, got.Exit(), want.code, want.exit)
		}
		if !strings.Contains(err.Error(), want.text) {
			t.Errorf("error %q, want %q in it", err, want.text)
		}
		if strings.Contains(err.Error(), strings.Repeat("x", 513)) || len(want.answer.Error()) > 64<<10 && strings.Contains(err.Error(), "xxx") {
			t.Error("a text without end was read")
		}
		if err != nil && len(err.Error()) > 1024 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		if got := session.RetryAfter(err); got != want.retry {
			t.Errorf("retry after %s, want %s", got, want.retry)
		}
	}
}

// A request that is too large is not sent, and the message names what is large.
func TestLargeJoinIsNotSent(t *testing.T) {
	ca := newAuthority(t, "serving")
	api := &answers{}
	c, err := dial(t, gatewayAt(serve(t, serverConfig(ca.leaf(t, nil)), api), ca), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := proto.Marshal(&daemonv1.JoinRequestBody{Claims: &daemonv1.HardwareClaims{Hostname: strings.Repeat("x", session.MaxJoinRequest)}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Join(t.Context(), &daemonv1.JoinRequest{Body: body})
	if fault.CodeOf(err) != fault.TooLarge || !strings.Contains(err.Error(), "most of it is the hardware claims") {
		t.Errorf("error %v", err)
	}
	if api.calls.Load() != 0 {
		t.Error("it was sent")
	}
}

// stuckKey is a key in a TPM that does not answer.
type stuckKey struct {
	crypto.Signer
	until chan struct{}
}

func (k stuckKey) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	<-k.until
	return k.Signer.Sign(random, digest, opts)
}

// A TPM that does not answer is not taken for a gateway that does not.
func TestKeyThatDoesNotSignIsNamed(t *testing.T) {
	ca, nodes := newAuthority(t, "serving"), newAuthority(t, "nodes")
	pool := x509.NewCertPool()
	pool.AddCert(nodes.cert)
	config := serverConfig(ca.leaf(t, nil))
	config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, pool
	g := gatewayAt(serve(t, config, &answers{}), ca)
	cert := nodes.leaf(t, nil)
	key := stuckKey{cert.PrivateKey.(crypto.Signer), make(chan struct{})}
	cert.PrivateKey = key
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := session.Dial(ctx, g, cert)
	if !fault.Is(err, fault.TPMUnavailable) || fault.HintOf(err) == "" || !strings.Contains(err.Error(), "own key") {
		t.Errorf("error %v with code %s", err, fault.CodeOf(err))
	}
	close(key.until)
	if _, err := dial(t, g, cert); err != nil {
		t.Errorf("once it signs: %v", err)
	}
}
