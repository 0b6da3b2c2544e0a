package archtest_test

import (
	"slices"
	"strings"
	"testing"
)

const module = "github.com/better-compute/bcd/"

// mayImport says, for each package, which packages of this module its code without tests may import. A package without a
// row fails, and so does a row without a package. The rows are ordered from the leaves up; an import only ever points to
// a row above.
var mayImport = map[string][]string{
	"internal/fault":     {},
	"internal/wallclock": {},
	"internal/archtest":  {},
	"docs":               {},
	"internal/bearer":    {},
	"internal/oneline":   {},
	"internal/peercred":  {},
	"internal/pin":       {"internal/fault"},
	"internal/signing":   {},
	"internal/smallfile": {},
	"internal/statefile": {"internal/fault"},
	"internal/terminal":  {},

	"api":           {},
	"api/daemon/v1": {},
	"api/join/v1":   {"api/daemon/v1"},

	"hwclaims/profile":     {},
	"hwclaims":             {"hwclaims/profile", "internal/fault"},
	"tpmkey/internal/area": {},
	"tpmkey/attest":        {"tpmkey/internal/area"},
	"tpmkey":               {"internal/fault", "tpmkey/attest", "tpmkey/internal/area"},
	"tpmkey/tpmkeytest":    {"tpmkey/tpmkeytest/internal/wire"},

	"tpmkey/tpmkeytest/internal/wire": {},
	"tpmkey/tpmkeytest/simulator":     {"tpmkey/tpmkeytest/internal/wire"},

	"seal":     {"internal/fault", "internal/pin"},
	"identity": {"internal/fault", "internal/pin", "internal/signing", "internal/statefile"},

	"agent/credential": {"internal/bearer", "internal/fault", "internal/smallfile", "internal/terminal"},
	"agent/config":     {"internal/fault", "internal/pin", "internal/smallfile", "seal"},
	"agent/session":    {"api/daemon/v1", "internal/fault", "internal/oneline", "internal/pin"},
	"agent/helper": {
		"hwclaims", "identity", "internal/fault", "internal/peercred", "internal/signing", "internal/statefile", "tpmkey", "tpmkey/attest",
	},
	"agent": {
		"agent/config", "agent/credential", "agent/helper", "agent/session", "api/daemon/v1", "hwclaims", "identity", "internal/bearer",
		"internal/fault", "internal/oneline", "internal/peercred", "internal/pin", "internal/signing", "internal/statefile", "seal", "tpmkey", "tpmkey/attest",
	},
	"cmd/bcd": {"agent", "agent/config", "hwclaims", "internal/fault", "internal/oneline", "internal/terminal", "internal/wallclock"},

	"controlplane/events":      {"internal/fault"},
	"controlplane/store":       {"controlplane/events", "hwclaims", "internal/fault"},
	"controlplane/idempotency": {"controlplane/store", "internal/fault", "internal/oneline"},
	"controlplane/tenancy":     {"controlplane/events", "controlplane/idempotency", "controlplane/store", "internal/fault", "internal/oneline"},
	"controlplane/apikeys": {
		"controlplane/events", "controlplane/idempotency", "controlplane/store", "controlplane/tenancy", "internal/fault",
	},
	"controlplane/tokens": {
		"controlplane/events", "controlplane/idempotency", "controlplane/store", "hwclaims", "internal/bearer", "internal/fault", "internal/oneline",
	},
	"controlplane/ekallow": {
		"controlplane/events", "controlplane/idempotency", "controlplane/store", "internal/fault", "tpmkey/attest",
	},
	"controlplane/approvals": {"controlplane/events", "controlplane/store", "internal/fault", "internal/oneline"},
	"controlplane/pki":       {"internal/fault", "internal/pin", "internal/signing", "internal/statefile", "seal"},
	"controlplane/joinservice": {
		"api/daemon/v1", "api/join/v1", "controlplane/events", "controlplane/pki", "controlplane/store", "hwclaims",
		"internal/bearer", "internal/fault", "internal/signing", "seal", "tpmkey/attest",
	},
	"controlplane/gateway":    {"api/daemon/v1", "api/join/v1", "internal/fault"},
	"controlplane/acceptance": {"controlplane/events", "controlplane/store"},
	"controlplane/nodes":      {"controlplane/acceptance", "controlplane/events", "controlplane/store", "internal/fault"},
	"controlplane/httpapi": {
		"controlplane/apikeys", "controlplane/approvals", "controlplane/ekallow", "controlplane/events", "controlplane/nodes", "controlplane/pki", "controlplane/store",
		"controlplane/tenancy", "controlplane/tokens", "docs", "hwclaims", "internal/fault", "internal/pin",
	},
	"controlplane/httpapi/client": {"controlplane/httpapi", "internal/fault"},
	"controlplane": {
		"api/join/v1", "controlplane/acceptance", "controlplane/apikeys", "controlplane/events", "controlplane/gateway", "controlplane/httpapi", "controlplane/joinservice",
		"controlplane/pki", "controlplane/store", "controlplane/tokens", "internal/fault", "internal/statefile",
	},
	"controlplane/controlplanetest": {
		"api/daemon/v1", "api/join/v1", "controlplane", "controlplane/events", "controlplane/gateway", "controlplane/joinservice",
		"controlplane/pki", "controlplane/store", "controlplane/tokens", "internal/fault", "internal/pin",
	},
	"cmd/better-compute": {
		"controlplane", "controlplane/httpapi", "controlplane/httpapi/client", "controlplane/pki", "internal/fault", "internal/oneline",
		"internal/pin", "internal/terminal", "internal/wallclock",
	},
}

// homes are imports of other modules that have one home.
var homes = []struct {
	path  string // an import path, or a prefix that ends with "/"
	homes []string
	why   string
}{
	{"database/sql", []string{"journal", "controlplane/store"}, "SQL lives in journal and controlplane/store"},
	{"modernc.org/", []string{"journal", "controlplane/store"}, "SQL lives in journal and controlplane/store"},
	{"github.com/google/go-tpm/", []string{"tpmkey", "tpmkey/"}, "the rest of bcd sees crypto.Signer, not TPM types"},
	{"github.com/google/go-tpm-tools/", []string{"tpmkey/tpmkeytest/simulator"}, "the simulator is for tests, and is cgo"},
	{"google.golang.org/grpc", []string{"agent/session", "api/", "controlplane", "controlplane/"}, "only the session and the control plane speak gRPC"},
	{"google.golang.org/grpc/", []string{"agent/session", "api/", "controlplane", "controlplane/"}, "only the session and the control plane speak gRPC"},
	{"github.com/go-jose/", []string{"seal"}, "JOSE lives in seal"},
	{"github.com/spf13/cobra", []string{"cmd/bcd", "cmd/better-compute"}, "flags live in cmd"},
	{"github.com/getkin/kin-openapi/", nil, "it is for the tests of the API's document"},
	{"github.com/ebitengine/purego", []string{"hwclaims", "hwclaims/"}, "NVML is the only library that is loaded at run time"},
	{"testing", []string{"tpmkey/tpmkeytest", "controlplane/controlplanetest"}, "test helpers live in <package>test packages"},
	{"log", nil, "log with the injected slog.Logger"},
	{"math/rand", nil, "crypto/rand for secrets, math/rand/v2 for jitter"},
	{"io/ioutil", nil, "use os and io"},
	{"github.com/pkg/errors", nil, "use errors, and fmt.Errorf with %w"},
}

// notShipped are packages that no program may reach.
var notShipped = []string{"tpmkey/tpmkeytest", "controlplane/controlplanetest"}

func TestImportDirections(t *testing.T) {
	tree := parse(t)
	for _, p := range tree.packages() {
		allowed, known := mayImport[p.dir]
		if !known {
			if !strings.HasPrefix(p.dir, "e2e") { // the end-to-end tests may import everything
				t.Errorf("%s has no row in mayImport", p.dir)
			}
			continue
		}
		for _, imp := range p.imports {
			if own, found := strings.CutPrefix(imp, module); found {
				if !slices.Contains(allowed, own) {
					t.Errorf("%s imports %s: not in its row", p.dir, own)
				}
				continue
			}
			for _, h := range homes {
				if matches(h.path, imp) && !slices.ContainsFunc(h.homes, func(home string) bool { return matches(home, p.dir) }) {
					t.Errorf("%s imports %s: %s", p.dir, imp, h.why)
				}
			}
		}
	}
	for dir := range mayImport {
		if _, found := tree[dir]; !found {
			t.Errorf("mayImport has a row for %s, which does not exist", dir)
		}
	}
}

// The daemon never links the control plane, the control plane never links the daemon, and neither links test code.
func TestWhatTheProgramsLink(t *testing.T) {
	tree := parse(t)
	for program, forbidden := range map[string][]string{
		"cmd/bcd":            append([]string{"controlplane", "controlplane/", "api/join/v1"}, notShipped...),
		"cmd/better-compute": append([]string{"agent", "agent/"}, notShipped...),
	} {
		for _, dir := range tree.reach(program) {
			for _, f := range forbidden {
				if matches(f, dir) {
					t.Errorf("%s links %s", program, dir)
				}
			}
		}
	}
}

// matches reports whether s is pattern, or lies below a pattern that ends with "/".
func matches(pattern, s string) bool {
	if strings.HasSuffix(pattern, "/") {
		return strings.HasPrefix(s, pattern)
	}
	return s == pattern
}
