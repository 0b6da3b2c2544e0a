package config

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/seal"
)

const (
	// wellKnownPath is appended to the control plane's URL, base path included. RFC 8615 would put it at the origin.
	wellKnownPath = "/.well-known/better-compute"
	// usualBasePath is where a control plane is unless its operator says otherwise.
	usualBasePath = "/api/compute"

	// protocol is the version that this bcd speaks.
	protocol = 1

	fetchTimeout = 10 * time.Second
	maxDocument  = 64 << 10
	maxRedirects = 3
)

// Document is the control plane's well-known document. Nothing in it is trusted because of where it came from. Members
// that bcd does not know are ignored.
type Document struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	BasePath string `json:"basePath"`
	Protocol struct {
		Min int `json:"min"`
		Max int `json:"max"`
	} `json:"protocol"`
	// Join is nil where the control plane has no JoinService keys.
	Join *DocumentJoin `json:"join"`
	// Gateway is nil where the control plane does not say which gateway to use.
	Gateway *DocumentGateway `json:"gateway"`
}

// DocumentJoin is JoinService's public keys.
type DocumentJoin struct {
	// EncryptionJWK is left as it came: what is wrong with it is told when it is used.
	EncryptionJWK      json.RawMessage `json:"encryptionJwk"`
	EncryptionKeyPin   string          `json:"encryptionKeyPin"`
	SigningCertificate string          `json:"signingCertificate"` // base64 DER
	SigningKeyPin      string          `json:"signingKeyPin"`
}

// DocumentGateway is the gateway to use.
type DocumentGateway struct {
	URL          string `json:"url"`
	ServerName   string `json:"serverName"`
	ServingCAPin string `json:"servingCaPin"`
}

// Fetcher gets the well-known document. Its zero value trusts the system's roots and goes through no proxy.
type Fetcher struct {
	// Roots replaces the system's roots.
	Roots *x509.CertPool
	// Proxy says which proxy a request goes through, such as [http.ProxyFromEnvironment].
	Proxy func(*http.Request) (*url.URL, error)
	// Now judges the server's certificate; nil is the system's clock.
	Now func() time.Time
}

// JoinKey fetches the document of the control plane at server, such as https://compute.example.com/api/compute, and
// returns its join key where the pins name it.
func (f Fetcher) JoinKey(ctx context.Context, server string, pins pin.Set) (seal.Key, error) {
	d, err := f.Document(ctx, server)
	if err != nil {
		return seal.Key{}, err
	}
	key, err := d.JoinKey(pins)
	if err != nil {
		return seal.Key{}, fault.New(fault.CodeOf(err), "", "cannot use the join key of %s: %w", server, err)
	}
	return key, nil
}

// JoinKey returns the document's join key where the pins name it.
func (d *Document) JoinKey(pins pin.Set) (seal.Key, error) {
	if d.Join == nil || len(d.Join.EncryptionJWK) == 0 {
		return seal.Key{}, fault.New(fault.InvalidConfig, "ask the control plane's operator to configure pki.join", "the control plane publishes none")
	}
	key, err := seal.ParseKey(d.Join.EncryptionJWK)
	if err != nil {
		return seal.Key{}, fault.New(fault.Verification, "ask the control plane's operator", "%w", err)
	}
	if err := pinned(key, pins); err != nil {
		return seal.Key{}, fault.New(fault.Verification, "check that --server names the control plane of this machine's configuration; after a rotation of its keys, "+hintSource, "%w", err)
	}
	return key, nil
}

// Document fetches the document of the control plane at server and checks its name and protocol. It follows at most 3
// redirects, on the same host and over https.
func (f Fetcher) Document(ctx context.Context, server string) (*Document, error) {
	base, err := parseServer(server)
	if err != nil {
		return nil, err
	}
	target := base.JoinPath(wellKnownPath)
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	body, err := f.get(ctx, target)
	if err != nil {
		return nil, err
	}
	const other = "check that --server names a control plane"
	d := &Document{}
	if err := json.Unmarshal(body, d); err != nil {
		return nil, fault.New(fault.Config, other, "cannot read the document at %s: %w", target, err)
	}
	if d.Name != "better-compute" {
		return nil, fault.New(fault.Config, other, "the document at %s is named %q, not %q", target, d.Name, "better-compute")
	}
	if d.Protocol.Min > protocol || d.Protocol.Max < protocol {
		return nil, fault.New(fault.Config, "install the bcd that belongs to this control plane",
			"the control plane at %s speaks protocol %d to %d, and this bcd speaks %d", server, d.Protocol.Min, d.Protocol.Max, protocol)
	}
	return d, nil
}

// parseServer reads the value of --server.
func parseServer(server string) (*url.URL, error) {
	const hint = "write it as https://compute.example.com" + usualBasePath
	u, err := url.Parse(server)
	switch {
	case err != nil:
		return nil, fault.New(fault.Config, hint, "--server: %q is not a URL", server)
	case u.User != nil:
		return nil, fault.New(fault.Config, hint, "--server: a control plane's URL has no user and no password")
	case u.Scheme != "https":
		return nil, fault.New(fault.Config, hint, "--server: %q does not start with https://", server)
	case !isHost(u.Hostname()) || u.Port() != "" && !isPort(u.Port()):
		return nil, fault.New(fault.Config, hint, "--server: %q names no host", server)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, fault.New(fault.Config, hint, "--server: %q has more than a path", server)
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), ""
	return u, nil
}

// get returns the body of a successful answer.
func (f Fetcher) get(ctx context.Context, target *url.URL) ([]byte, error) {
	transport := &http.Transport{
		Proxy:             f.Proxy,
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: f.Roots, Time: f.Now},
		DisableKeepAlives: true,
		ForceAttemptHTTP2: true,
		// What is asked for is what is measured: no compressed answer.
		DisableCompression: true,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: sameOrigin}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, fault.New(fault.Config, "", "cannot fetch %s: %w", target, err)
	}
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, fetchError(target, err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := statusError(target, response); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxDocument+1))
	switch {
	case err != nil:
		return nil, fetchError(target, err)
	case len(body) > maxDocument:
		return nil, fault.New(fault.Config, "check that --server names a control plane", "the document at %s has more than %d bytes", target, maxDocument)
	}
	return body, nil
}

// errRedirect is a redirect that is not followed.
var errRedirect = errors.New("it redirects")

func sameOrigin(next *http.Request, via []*http.Request) error {
	switch first := via[0].URL; {
	case len(via) > maxRedirects:
		return fmt.Errorf("%w more than %d times", errRedirect, maxRedirects)
	case next.URL.Scheme != "https" || !strings.EqualFold(next.URL.Host, first.Host) || next.URL.User != nil:
		return fmt.Errorf("%w to another server, %s://%s", errRedirect, next.URL.Scheme, next.URL.Host)
	}
	return nil
}

// fetchError gives a failed exchange its code.
func fetchError(target *url.URL, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // without the method and the URL, which are told here
	}
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.Is(err, errRedirect):
		return fault.New(fault.Config, "give --server the control plane's own URL", "cannot fetch %s: %w", target, err)
	case errors.As(err, &untrusted):
		return fault.New(fault.Verification, "check the server's certificate, this machine's clock and its CA certificates", "cannot trust %s: %w", target, untrusted.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Unreachable, "check the network, and that --server is right", "cannot fetch %s: no answer within %s", target, fetchTimeout)
	case errors.Is(err, context.Canceled):
		return err
	default:
		return fault.New(fault.Unreachable, "check the network, and that --server is right", "cannot fetch %s: %w", target, err)
	}
}

// statusError judges the answer's status.
func statusError(target *url.URL, r *http.Response) error {
	switch {
	case r.StatusCode == http.StatusOK:
		return nil
	case r.StatusCode == http.StatusNotFound:
		hint := "check the path of --server"
		if usual := (&url.URL{Scheme: "https", Host: target.Host, Path: usualBasePath}); target.Path != usualBasePath+wellKnownPath {
			hint = "try --server " + usual.String()
		}
		return fault.New(fault.Config, hint, "there is no control plane at %s: %s", target, r.Status)
	case r.StatusCode >= 500 || r.StatusCode == http.StatusTooManyRequests || r.StatusCode == http.StatusRequestTimeout:
		return fault.New(fault.Unreachable, "try again later", "cannot fetch %s: %s", target, r.Status)
	default:
		return fault.New(fault.Config, "check that --server names a control plane", "cannot fetch %s: %s", target, r.Status)
	}
}
