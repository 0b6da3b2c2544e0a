package seal_test

import (
	"bytes"
	"crypto/ecdh"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/seal"
)

// python is the interpreter that Debian's packages belong to, not the first one of PATH.
const python = "/usr/bin/python3"

// jwcrypto runs a script under python3-jwcrypto: input on its standard input as JSON, its standard output returned.
func jwcrypto(t *testing.T, script string, input any) []byte {
	t.Helper()
	if out, err := exec.Command(python, "-c", "import jwcrypto").CombinedOutput(); err != nil {
		reason := fmt.Sprintf("the JOSE implementation to compare with is missing (Debian: apt-get install python3-jwcrypto): %v %s", err, bytes.TrimSpace(out))
		if os.Getenv("BCD_REQUIRE_JWCRYPTO") == "1" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	b, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", script)
	cmd.Stdin = bytes.NewReader(b)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	return out
}

func privateJWK(k *ecdh.PrivateKey) vectorKey {
	b := k.PublicKey().Bytes()
	return vectorKey{"EC", "P-256", b64(b[1:33]), b64(b[33:]), b64(k.Bytes())}
}

// Req: SE-001 SE-002 SE-003
func TestAnotherImplementationOpensOurSeal(t *testing.T) {
	private, key := newKey(t)
	out := jwcrypto(t, `
import json, sys
from jwcrypto import jwe, jwk
i = json.load(sys.stdin)
t = jwe.JWE(algs=["ECDH-ES+A256KW", "A256GCM"])
t.deserialize(i["compact"], jwk.JWK(**i["key"]))
json.dump({"token": t.payload.decode(), "header": t.jose_header}, sys.stdout)
`, map[string]any{"compact": mustSeal(t, key), "key": privateJWK(private)})
	var got struct {
		Token  string
		Header struct {
			Typ string
			Iat int64
			Csr string
		}
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(csr)
	if got.Token != string(token) || got.Header.Typ != "bcjt+jwe" || got.Header.Iat != now.Unix() || got.Header.Csr != b64(sum[:]) {
		t.Errorf("%s", out)
	}
}

func TestWeOpenAnotherImplementationsSeal(t *testing.T) {
	private, key := newKey(t)
	sum := sha256.Sum256(csr)
	// Sixty-four at once: an ephemeral key with a short coordinate is among them in two runs of five.
	out := jwcrypto(t, `
import json, sys
from jwcrypto import jwe, jwk
i = json.load(sys.stdin)
out = []
for _ in range(64):
    t = jwe.JWE(i["token"].encode(), protected=json.dumps(i["header"]), algs=["ECDH-ES+A256KW", "A256GCM"])
    t.add_recipient(jwk.JWK(**i["key"]))
    out.append(t.serialize(compact=True))
json.dump(out, sys.stdout)
`, map[string]any{
		"token": string(token), "key": key,
		"header": map[string]any{"alg": "ECDH-ES+A256KW", "enc": "A256GCM", "typ": "bcjt+jwe", "iat": 1795950371, "csr": b64(sum[:])},
	})
	var seals []string
	if err := json.Unmarshal(out, &seals); err != nil {
		t.Fatal(err)
	}
	if len(seals) != 64 {
		t.Fatalf("%d seals", len(seals))
	}
	for _, compact := range seals {
		got, err := seal.Open([]ecdh.KeyExchanger{private}, compact, csr)
		if err != nil {
			t.Fatalf("%v: %s", err, compact)
		}
		if diff := cmp.Diff(seal.Opened{Token: token, IssuedAt: time.Unix(1795950371, 0).UTC()}, got); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestAnotherImplementationOpensTheValidVectors(t *testing.T) {
	f, _, _ := load(t, "valid.json")
	out := jwcrypto(t, `
import json, sys
from jwcrypto import jwe, jwk
f = json.load(sys.stdin)
out = []
for v in f["vectors"]:
    t = jwe.JWE(algs=["ECDH-ES+A256KW", "A256GCM"])
    t.deserialize(v["compact"], jwk.JWK(**f["recipient"]))
    out.append(t.payload.decode())
json.dump(out, sys.stdout)
`, f)
	var got []string
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, v := range f.Vectors {
		want = append(want, v.Token)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
