package pki_test

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"
)

// dial runs one handshake and one byte each way, so that a server's refusal of the client shows at the client.
func dial(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.CopyN(c, c, 1)
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, client)
	defer c.Close()
	if err := c.Handshake(); err != nil {
		return tls.ConnectionState{}, err
	}
	if _, err := c.Write([]byte{1}); err != nil {
		return tls.ConnectionState{}, err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return c.ConnectionState(), err
}

// Req: JF-019
func TestInternalConnectionIsMutual(t *testing.T) {
	b, other := newBundle(t), newBundle(t)
	clock := func() time.Time { return now }

	if _, err := dial(t, b.InternalServer(clock), b.InternalClient(clock)); err != nil {
		t.Fatalf("gateway to JoinService: %v", err)
	}

	anonymous := b.InternalClient(clock)
	anonymous.GetClientCertificate = nil
	foreign := other.InternalClient(clock)
	foreign.RootCAs = b.InternalClient(clock).RootCAs
	serving, err := b.IssueGateway([]string{"gw.example.com"}, now)
	if err != nil {
		t.Fatal(err)
	}
	public := b.InternalClient(clock) // what a gateway shows to daemons does not open JoinService
	public.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		c := serving.TLS()
		return &c, nil
	}
	// JoinService's own certificate is no gateway's.
	server := b.InternalClient(clock)
	server.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return b.InternalServer(clock).GetCertificate(nil)
	}
	for name, client := range map[string]*tls.Config{
		"no certificate": anonymous, "another bundle's": foreign, "a serving certificate": public, "the server's own": server,
	} {
		if _, err := dial(t, b.InternalServer(clock), client); err == nil {
			t.Errorf("%s: JoinService accepted it", name)
		}
	}
	if _, err := dial(t, other.InternalServer(clock), b.InternalClient(clock)); err == nil {
		t.Error("the gateway accepted another JoinService")
	}
}

func TestOwnCertificatesAreReplacedInTime(t *testing.T) {
	b := newBundle(t)
	at := now
	clock := func() time.Time { return at }
	get, err := b.GatewayCertificate([]string{"gw.example.com"}, clock)
	if err != nil {
		t.Fatal(err)
	}
	first, err := get(nil)
	if err != nil {
		t.Fatal(err)
	}
	serial := func(c *tls.Certificate) string { return c.Leaf.SerialNumber.String() }
	for _, c := range []struct {
		at   time.Duration
		same bool
	}{{0, true}, {19 * 24 * time.Hour, true}, {21 * 24 * time.Hour, false}, {400 * 24 * time.Hour, false}, {-24 * time.Hour, false}} {
		at = now.Add(c.at)
		got, err := get(nil)
		if err != nil {
			t.Fatal(err)
		}
		if same := serial(got) == serial(first); same != c.same {
			t.Errorf("after %v: same certificate %v, want %v", c.at, same, c.same)
		}
		if at.Before(got.Leaf.NotBefore) || at.After(got.Leaf.NotAfter) {
			t.Errorf("after %v: certificate is not valid", c.at)
		}
	}
	if _, err := b.GatewayCertificate([]string{"no name"}, clock); err == nil {
		t.Error("a bad name is found only at the first handshake")
	}
}
