package httpapi_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/internal/pin"
)

func (f *fixture) get(url string) answer {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.do(r)
}

const documentPath = "/api/compute/.well-known/better-compute"

// Req: CF-013 CF-014 CF-015 CF-016 CF-030 CF-031 CF-032
func TestWellKnownDocument(t *testing.T) {
	f := newFixture(t)
	bundle, err := pki.New("compute.example.com", start)
	if err != nil {
		t.Fatal(err)
	}
	public := bundle.Public()
	base := map[string]any{
		"name": "better-compute", "version": "0.1.0", "basePath": "/api/compute", "protocol": map[string]any{"min": 1.0, "max": 1.0},
	}
	join := map[string]any{
		"encryptionJwk": map[string]any{
			"kty": "EC", "crv": "P-256",
			"x": base64.RawURLEncoding.EncodeToString(public.JoinEncryptionKey().Bytes()[1:33]),
			"y": base64.RawURLEncoding.EncodeToString(public.JoinEncryptionKey().Bytes()[33:]),
		},
		"encryptionKeyPin":   public.Pins().JoinEncryption.String(),
		"signingCertificate": base64.StdEncoding.EncodeToString(public.JoinSigningCertificate().Raw),
		"signingKeyPin":      public.Pins().JoinSigning.String(),
	}
	gateway := map[string]any{"url": "https://gw.eu.example.com", "servingCaPin": pin.OfCertificate(public.ServingCA()).String()}
	for name, test := range map[string]struct {
		options httpapi.Options
		want    map[string]any
	}{
		"no keys": {httpapi.Options{}, base},
		"keys":    {httpapi.Options{PKI: public}, with(base, "join", join)},
		"a gateway": {
			httpapi.Options{PKI: public, Gateway: &httpapi.Gateway{URL: "https://gw.eu.example.com"}},
			with(with(base, "join", join), "gateway", gateway),
		},
		"a gateway with a name": {
			httpapi.Options{PKI: public, Gateway: &httpapi.Gateway{URL: "https://gw.eu.example.com", ServerName: "gw.eu.example.com"}},
			with(with(base, "join", join), "gateway", with(gateway, "serverName", "gw.eu.example.com")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.options.Version = "0.1.0"
			a := f.get(f.serve(test.options) + documentPath)
			if diff := cmp.Diff(test.want, a.object(t)); diff != "" {
				t.Error(diff)
			}
			if got := a.header.Get("Content-Type"); got != "application/json" {
				t.Errorf("Content-Type %q", got)
			}
		})
	}
}

// The pins are recomputed here from the published keys alone, as a reader of the document would.
//
// Req: CF-040 CF-041
func TestWellKnownPinsAreTheKeys(t *testing.T) {
	f := newFixture(t)
	bundle, err := pki.New("compute.example.com", start)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Join struct {
			EncryptionJWK                   struct{ X, Y string }
			EncryptionKeyPin, SigningKeyPin string
			SigningCertificate              string
		}
	}
	a := f.get(f.serve(httpapi.Options{PKI: bundle.Public()}) + documentPath)
	if err := json.Unmarshal([]byte(a.body), &d); err != nil {
		t.Fatal(err)
	}
	coordinate := func(s string) []byte {
		b, err := base64.RawURLEncoding.DecodeString(s)
		if err != nil || len(b) != 32 {
			t.Fatalf("%q: %d bytes, %v", s, len(b), err)
		}
		return b
	}
	point := slices.Concat([]byte{4}, coordinate(d.Join.EncryptionJWK.X), coordinate(d.Join.EncryptionJWK.Y))
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pin.Of(key); err != nil || got.String() != d.Join.EncryptionKeyPin {
		t.Errorf("encryptionKeyPin %s, the key's is %s (%v)", d.Join.EncryptionKeyPin, got, err)
	}
	der, err := base64.StdEncoding.DecodeString(d.Join.SigningCertificate)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if got := pin.OfCertificate(certificate); got.String() != d.Join.SigningKeyPin {
		t.Errorf("signingKeyPin %s, the certificate's is %s", d.Join.SigningKeyPin, got)
	}
}

func TestBasePath(t *testing.T) {
	f := newFixture(t)
	base := f.serve(httpapi.Options{BasePath: "/x"})
	if got := f.get(base + "/x/.well-known/better-compute").object(t)["basePath"]; got != "/x" {
		t.Errorf("basePath %v", got)
	}
	if got := f.get(base + documentPath).status; got != http.StatusNotFound {
		t.Errorf("the default base path answers %d too", got)
	}
	f.url = base + "/x"
	f.call("tenants.list", map[string]any{}).object(t)

	for _, path := range []string{"api", "/api/", "/", "/a?b", "/a#b", "/a%20b"} {
		if _, err := httpapi.New(httpapi.Options{BasePath: path, Store: f.store}); err == nil {
			t.Errorf("base path %q is accepted", path)
		}
	}
	for _, o := range []httpapi.Options{{}, {Gateway: &httpapi.Gateway{URL: "https://gw"}}} {
		if _, err := httpapi.New(o); err == nil {
			t.Errorf("accepted %+v", o)
		}
	}
}
