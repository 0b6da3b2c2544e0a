package session

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
	"github.com/better-compute/bcd/internal/pin"
)

// maxPeerChain bounds what a peer may present, in certificates.
const maxPeerChain = 8

// transport is the TLS of one client: TLS 1.3, HTTP/2, no session tickets, the gateway authenticated by its pinned
// serving CA on every handshake. It remembers why the last handshake or connection failed, because gRPC turns both into
// a text.
type transport struct {
	serverName string
	servingCA  pin.Set
	now        func() time.Time
	client     *tls.Certificate
	signing    atomic.Int32 // signatures of the client's key that are under way
	keyFailed  atomic.Pointer[error]

	mu   sync.Mutex
	last error
}

func (t *transport) config() *tls.Config {
	c := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ServerName:             t.serverName,
		NextProtos:             []string{"h2"},
		SessionTicketsDisabled: true,
		Time:                   t.now,
		// System roots are never asked: verify decides alone, on every handshake.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does the verification
		VerifyConnection:   t.verify,
	}
	if t.client != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return t.watched(t.client), nil }
	}
	return c
}

// verify checks that the presented chain holds a CA certificate whose key is pinned, and that the leaf verifies to
// exactly that CA for the gateway's name.
func (t *transport) verify(s tls.ConnectionState) error {
	chain := s.PeerCertificates
	if len(chain) == 0 || len(chain) > maxPeerChain {
		return fault.New(fault.Verification, hintPin, "the gateway presents %d certificates", len(chain))
	}
	roots, others := x509.NewCertPool(), x509.NewCertPool()
	pinned := false
	for _, c := range chain {
		if c.IsCA && t.servingCA.Has(pin.OfCertificate(c)) {
			roots.AddCert(c)
			pinned = true
		} else {
			others.AddCert(c)
		}
	}
	if !pinned {
		return fault.New(fault.Verification, hintPin,
			"no certificate that the gateway presents has the pinned serving CA key %s (issuer of its certificate: %q)", t.servingCA, oneline.Bounded(chain[0].Issuer.String(), maxMessage))
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		DNSName:       t.serverName,
		Roots:         roots,
		Intermediates: others,
		CurrentTime:   t.now(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fault.New(fault.Verification, fmt.Sprintf("compare this machine's clock (%s) with the dates; if the clock is right, the gateway needs a new certificate", t.now().UTC().Format(time.RFC3339)),
			"the gateway's certificate is outside its dates: %w", err)
	case errors.As(err, &name):
		return fault.New(fault.Verification, "set gateway_url, or gateway_server_name, to a name that the gateway's certificate holds",
			"the gateway's certificate is for another name: %w", err)
	default:
		return fault.New(fault.Verification, hintPin, "the gateway's certificate does not verify: %w", err)
	}
}

const hintPin = `compare serving_ca_spki_pin with what "better-compute pki show" prints; if they are equal, something between this machine and the gateway intercepts TLS`

// ClientHandshake implements [credentials.TransportCredentials].
func (t *transport) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Client(raw, t.config())
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		if keyErr := t.keyError(); keyErr != nil {
			err = keyErr
		} else {
			err = handshakeError(err)
		}
		t.remember(err)
		return nil, nil, err
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != "h2" {
		_ = conn.Close()
		err := fault.New(fault.Verification, "check gateway_url: the peer is a web server or a proxy, not a gateway", "the peer does not speak HTTP/2")
		t.remember(err)
		return nil, nil, err
	}
	watched := &watchedConn{Conn: conn, transport: t}
	if t.client != nil {
		if err := watched.await(ctx); err != nil {
			_ = conn.Close()
			t.remember(err)
			return nil, nil, err
		}
	}
	t.remember(nil)
	info := credentials.TLSInfo{State: state, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	return watched, info, nil
}

// handshakeError names what a handshake failed of. Errors of our own verification pass through.
func handshakeError(err error) error {
	var own *fault.Error
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &plain):
		return fault.New(fault.Verification, "check gateway_url: the port does not speak TLS", "the peer does not speak TLS: %w", err)
	case strings.Contains(err.Error(), "remote error: tls: no application protocol"):
		return fault.New(fault.Verification, "check gateway_url: the peer is a web server or a proxy, not a gateway", "the peer does not speak HTTP/2: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Unreachable, hintReach, "the gateway did not finish the TLS handshake in time")
	default:
		// An alert within the handshake is from before the gateway is authenticated: anybody on the way can send it, and
		// it says nothing of the node's certificate, which the gateway has not seen yet.
		if alert, found := remoteAlert(err); found {
			return endedByAlert(alert)
		}
		return fault.New(fault.Unreachable, hintReach, "the TLS handshake with the gateway failed: %w", err)
	}
}

const hintReach = "check the network, the name and the port of gateway_url, and that the gateway runs"

// remoteAlert returns the name of the TLS alert that the peer sent.
func remoteAlert(err error) (alert string, found bool) {
	_, alert, found = strings.Cut(err.Error(), "remote error: tls: ")
	return alert, found
}

func endedByAlert(alert string) error {
	return fault.New(fault.Verification, "check that the port is a gateway's", "the peer ended TLS with an alert: %s", firstLine(alert))
}

// alertError recognises the alerts by which a gateway refuses the client certificate that it was shown. With TLS 1.3 a client
// sees them only at its first read, long after the handshake looked complete.
func (t *transport) alertError(err error) error {
	alert, found := remoteAlert(err)
	if !found {
		return nil
	}
	hint := fault.HintJoinAgain
	switch {
	case t.client == nil:
		return endedByAlert(alert)
	case strings.HasPrefix(alert, "expired certificate"):
		return fault.New(CertificateRefused, hint, "%w", ErrCertificateExpired)
	case strings.HasPrefix(alert, "unknown certificate authority"):
		return fault.New(CertificateRefused, hint, "the gateway does not know the CA of this node's certificate")
	case strings.HasPrefix(alert, "bad certificate"), strings.HasPrefix(alert, "revoked certificate"), strings.HasPrefix(alert, "unknown certificate"),
		strings.HasPrefix(alert, "certificate required"), strings.HasPrefix(alert, "unsupported certificate"), strings.HasPrefix(alert, "access denied"):
		return fault.New(CertificateRefused, hint, "the gateway refuses this node's certificate (TLS alert: %s)", firstLine(alert))
	default:
		return endedByAlert(alert)
	}
}

// CertificateRefused is a gateway that refuses the node's certificate in the TLS handshake.
const CertificateRefused = fault.AccessDenied

// ErrCertificateExpired is a gateway that says that the node's certificate has expired.
var ErrCertificateExpired = errors.New("the gateway says that this node's certificate has expired")

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return strings.Trim(s, `" `)
}

func (t *transport) remember(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = err
}

// lastError returns why the last connection failed, nil when it did not or when TLS was never reached.
func (t *transport) lastError() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// ServerHandshake implements [credentials.TransportCredentials]; a daemon never listens.
func (t *transport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("the daemon accepts no connection")
}

// Info implements [credentials.TransportCredentials].
func (t *transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements [credentials.TransportCredentials]. The copy is the same object: what it remembers is asked for here.
func (t *transport) Clone() credentials.TransportCredentials { return t }

// OverrideServerName implements [credentials.TransportCredentials]; the name comes from the configuration alone.
func (t *transport) OverrideServerName(string) error { return nil }

// watchedConn remembers the alert that a read ends with.
type watchedConn struct {
	net.Conn
	transport *transport

	first []byte // was read by await, and comes first
}

// await waits for the peer's first bytes. A TLS 1.3 server judges the client's certificate when the client's handshake is
// already over: what is written before its verdict is known can reset the connection, and the alert is lost with it. An
// HTTP/2 server speaks first.
func (c *watchedConn) await(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	first := make([]byte, 512)
	n, err := c.Conn.Read(first)
	if !stop() {
		return fault.New(fault.Unreachable, hintReach, "the gateway did not answer in time")
	}
	if err != nil {
		if alert := c.transport.alertError(err); alert != nil {
			return alert
		}
		return handshakeError(err)
	}
	c.first = first[:n]
	return nil
}

func (c *watchedConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	n, err := c.Conn.Read(b)
	if err != nil {
		if alert := c.transport.alertError(err); alert != nil {
			c.transport.remember(alert)
		}
	}
	return n, err
}
