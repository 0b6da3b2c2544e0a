package controlplane_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/better-compute/bcd/controlplane"
)

// freePort is a port of loopback that nobody has now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	return l.Addr().String()
}

// A server.toml without a section for an attestor admits nobody: that is told at the start, not by refused machines alone.
func TestAServerWithoutAttestorsSaysSo(t *testing.T) {
	for text, want := range map[string]bool{"": true, "[attestors.join-token]\n": false, "[attestors.x509pop]\n": false} {
		dir, log := filepath.Join(t.TempDir(), "cp"), &bytes.Buffer{}
		o := options(t, dir)
		o.Log = slog.New(slog.NewTextHandler(log, nil))
		check(t, os.WriteFile(filepath.Join(dir, "server.toml"),
			[]byte("[api]\nlisten = '127.0.0.1:0'\n[gateway]\nlisten = '127.0.0.1:0'\n"+text), 0o600))
		s, err := controlplane.New(t.Context(), o)
		check(t, err)
		check(t, s.Close())
		if got := strings.Contains(log.String(), "serve without attestors"); got != want {
			t.Errorf("%q: warned %t, log %s", text, got, log)
		}
	}
}

// The keys of server.toml that can be seen from outside do what they say. The others are in tests of their own:
// root_tenant in TestStartsThatAreRefused, api.tls_cert in TestAPISpeaksTLSWhereItHasACertificate, and the attestors in
// TestAttestorsAreThoseWithASection.
func TestSettingsTakeEffect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	s, stop := run(t, options(t, dir))
	root := s.Config().RootTenant
	stop()

	api, gateway, join := freePort(t), freePort(t), freePort(t)
	check(t, os.WriteFile(filepath.Join(dir, "server.toml"), fmt.Appendf(nil, `root_tenant = %q
base_path = "/v1/api-x"
[api]
listen = %q
[gateway]
listen = %q
url = "https://gw.example.com:8443"
server_name = "gw-2.example.com"
refused_per_second = 7
refused_burst = 70
[join]
listen = %q
cert_ttl_seconds = 600
`, root, api, gateway, join), 0o600))
	o := options(t, dir)
	s, _ = run(t, o)

	if got, want := s.APIURL(), "http://"+api+"/v1/api-x"; got != want {
		t.Errorf("the API is at %s, want %s", got, want)
	}
	response, err := http.Get("http://" + api + "/v1/api-x/.well-known/better-compute")
	check(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	check(t, err)
	var document struct {
		BasePath string
		Gateway  struct{ URL, ServerName string }
	}
	check(t, json.Unmarshal(text, &document))
	if document.BasePath != "/v1/api-x" || document.Gateway.URL != "https://gw.example.com:8443" || document.Gateway.ServerName != "gw-2.example.com" {
		t.Errorf("the document says %s", text)
	}
	// The gateway's certificate has both names, and JoinService answers where it should.
	for _, name := range []string{"gw.example.com", "gw-2.example.com"} {
		c, err := tls.Dial("tcp", gateway, &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		check(t, err)
		if err := c.ConnectionState().PeerCertificates[0].VerifyHostname(name); err != nil {
			t.Error(err)
		}
		check(t, c.Close())
	}
	if s.JoinServiceAddr() != join || s.GatewayAddr() != gateway {
		t.Errorf("listens on %s and %s", s.JoinServiceAddr(), s.GatewayAddr())
	}
	c := s.Config()
	if c.Join.CertTTLSeconds != 600 || c.Gateway.RefusedPerSecond != 7 || c.Gateway.RefusedBurst != 70 {
		t.Errorf("runs with %+v", c)
	}
	// What the file leaves out is the default, and a section that is not there is none.
	if c.Attestors != (controlplane.AttestorsConfig{}) {
		t.Errorf("attestors %+v", c.Attestors)
	}
}

// What a file says of a section is read over that section's defaults.
func TestDefaultsOfASection(t *testing.T) {
	for text, want := range map[string]controlplane.DiscoveryConfig{
		"":                             {Approval: "unknown-machines", PendingTTLSeconds: 86400},
		"approval = \"always\"\n":      {Approval: "always", PendingTTLSeconds: 86400},
		"pending_ttl_seconds = 3600\n": {Approval: "unknown-machines", PendingTTLSeconds: 3600},
	} {
		dir := filepath.Join(t.TempDir(), "cp")
		o := options(t, dir)
		serverTOML("[api]\nlisten = \"127.0.0.1:0\"\n[gateway]\nlisten = \"127.0.0.1:0\"\n[attestors.discovery]\n"+text)(t, dir, &o)
		s, err := controlplane.New(t.Context(), o)
		check(t, err)
		if got := s.Config().Attestors.Discovery; got == nil || *got != want {
			t.Errorf("%q is %+v, want %+v", strings.TrimSpace(text), got, want)
		}
		check(t, s.Close())
	}
}
