package signing_test

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/better-compute/bcd/internal/signing"
)

var purposes = []signing.Purpose{
	signing.JoinRequest, signing.JoinResponse, signing.RenewResponse, signing.RenewPoP, signing.X509PoP,
	signing.Command, signing.CommandResult, signing.ResultAck, signing.ReleaseManifest, signing.SiteVouch,
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Req: RN-008
func TestVectors(t *testing.T) {
	b, err := os.ReadFile("../../testdata/vectors/signing.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		SPKI string `json:"spki_pem"`
		Sigs []struct {
			Purpose   signing.Purpose `json:"purpose"`
			Payload   string          `json:"payload_hex"`
			PAE       string          `json:"pae_hex"`
			Signature string          `json:"signature_hex"`
			SPKI      string          `json:"spki_pem"`
		} `json:"signatures"`
		PoP []struct {
			CSRSHA256  string `json:"csr_sha256_hex"`
			UnixMilli  int64  `json:"client_time_unix_ms"`
			NodeID     string `json:"node_id"`
			PayloadHex string `json:"payload_hex"`
		} `json:"pop"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	shown := map[signing.Purpose]bool{}
	for _, s := range v.Sigs {
		shown[s.Purpose] = true
		pub := publicKey(t, cmp.Or(s.SPKI, v.SPKI))
		payload, pae, sig := unhex(t, s.Payload), unhex(t, s.PAE), unhex(t, s.Signature)
		if got := s.Purpose.PAE(payload); hex.EncodeToString(got) != hex.EncodeToString(pae) {
			t.Errorf("%s: PAE %x, want %x", s.Purpose, got, pae)
		}
		for _, p := range purposes {
			err := signing.Verify(pub, p, payload, sig)
			if p == s.Purpose && err != nil {
				t.Errorf("%s: %v", p, err)
			}
			if p != s.Purpose && !errors.Is(err, signing.ErrSignature) {
				t.Errorf("a %s verifies as %s: %v", s.Purpose, p, err)
			}
		}
	}
	if len(shown) != len(purposes) || len(v.PoP) == 0 {
		t.Errorf("signatures for %d purposes of %d, %d proofs: a vector is missing", len(shown), len(purposes), len(v.PoP))
	}
	for _, p := range v.PoP {
		got := signing.PoP([32]byte(unhex(t, p.CSRSHA256)), time.UnixMilli(p.UnixMilli), p.NodeID)
		if hex.EncodeToString(got) != p.PayloadHex {
			t.Errorf("proof payload %x, want %s", got, p.PayloadHex)
		}
	}
}

func publicKey(t *testing.T, text string) any {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	pub, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSignThenVerify(t *testing.T) {
	key := newKey(t)
	for _, p := range purposes {
		sig, err := signing.Sign(key, p, []byte("payload"))
		if err != nil {
			t.Fatal(err)
		}
		if err := signing.Verify(key.Public(), p, []byte("payload"), sig); err != nil {
			t.Error(err)
		}
		for _, bad := range [][]byte{[]byte("payloae"), []byte("payload "), nil} {
			if err := signing.Verify(key.Public(), p, bad, sig); !errors.Is(err, signing.ErrSignature) {
				t.Errorf("%s over %q: %v", p, bad, err)
			}
		}
		if err := signing.Verify(newKey(t).Public(), p, []byte("payload"), sig); !errors.Is(err, signing.ErrSignature) {
			t.Errorf("another key: %v", err)
		}
		if err := signing.Verify(key.Public(), p, []byte("payload"), nil); !errors.Is(err, signing.ErrSignature) {
			t.Errorf("no signature: %v", err)
		}
	}
}

// Changing any input of the proof changes the payload.
// Req: RN-008
func TestPoPBindsEveryInput(t *testing.T) {
	csr, at := sha256.Sum256([]byte("csr")), time.UnixMilli(1_800_000_000_000)
	base := string(signing.PoP(csr, at, "node_1"))
	other := sha256.Sum256([]byte("other"))
	for name, got := range map[string][]byte{
		"csr":  signing.PoP(other, at, "node_1"),
		"time": signing.PoP(csr, at.Add(time.Millisecond), "node_1"),
		"node": signing.PoP(csr, at, "node_2"),
	} {
		if string(got) == base {
			t.Errorf("%s is not bound", name)
		}
	}
}

// The twin (r, n-s) verifies: a replay record must be keyed by the signed input.
func TestTwinSignatureVerifies(t *testing.T) {
	key := newKey(t)
	sig, err := signing.Sign(key, signing.RenewPoP, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	var rs struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(sig, &rs); err != nil {
		t.Fatal(err)
	}
	rs.S.Sub(elliptic.P256().Params().N, rs.S)
	twin, err := asn1.Marshal(rs)
	if err != nil {
		t.Fatal(err)
	}
	if err := signing.Verify(key.Public(), signing.RenewPoP, []byte("x"), twin); err != nil {
		t.Errorf("twin: %v", err)
	}
}

func TestForeignKeysAreRefused(t *testing.T) {
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []crypto.Signer{p384, rsaKey} {
		if _, err := signing.Sign(key, signing.Command, nil); err == nil {
			t.Errorf("%T signs", key)
		}
		if err := signing.Verify(key.Public(), signing.Command, nil, nil); err == nil || errors.Is(err, signing.ErrSignature) {
			t.Errorf("%T verifies as P-256: %v", key, err)
		}
	}
}

// watcher is a key that sees whole messages, as a privileged helper does.
type watcher struct {
	*ecdsa.PrivateKey
	saw []byte
}

func (w *watcher) SignMessage(r io.Reader, msg []byte, opts crypto.SignerOpts) ([]byte, error) {
	w.saw = msg
	digest := sha256.Sum256(msg)
	return w.Sign(r, digest[:], opts)
}

func TestMessageSignerSeesTheInput(t *testing.T) {
	w := &watcher{PrivateKey: newKey(t)}
	sig, err := signing.Sign(w, signing.JoinRequest, []byte("body"))
	if err != nil {
		t.Fatal(err)
	}
	if string(w.saw) != string(signing.JoinRequest.PAE([]byte("body"))) {
		t.Errorf("the key saw %q", w.saw)
	}
	if err := signing.Verify(w.Public(), signing.JoinRequest, []byte("body"), sig); err != nil {
		t.Error(err)
	}
}

// Parse takes what PAE makes, and nothing else that looks like it.
func TestParse(t *testing.T) {
	for _, payload := range []string{"", "x", " 3 abc", strings.Repeat("p", 100)} {
		input := signing.RenewPoP.PAE([]byte(payload))
		if p, got, ok := signing.Parse(input); !ok || p != signing.RenewPoP || string(got) != payload {
			t.Errorf("%q: %q, %q, %v", input, p, got, ok)
		}
	}
	typ := fmt.Sprintf("%d %s", len(signing.RenewPoP.Type()), signing.RenewPoP.Type())
	for name, input := range map[string]string{
		"nothing":           "",
		"another purpose":   string(signing.Purpose("renew-it").PAE([]byte("x"))),
		"a short length":    "DSSEv1 " + typ + " 1 abc",
		"a long length":     "DSSEv1 " + typ + " 4 abc",
		"a length with a 0": "DSSEv1 " + typ + " 03 abc",
		"a sign":            "DSSEv1 " + typ + " +3 abc",
		"another version":   "DSSEv2 " + typ + " 3 abc",
		"no length":         "DSSEv1 " + typ + " ",
		"cut":               "DSSEv1 " + typ,
	} {
		if p, payload, ok := signing.Parse([]byte(input)); ok {
			t.Errorf("%s: %q is %q over %q", name, input, p, payload)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(signing.X509PoP.PAE([]byte("payload")))
	f.Add([]byte("DSSEv1 "))
	f.Fuzz(func(t *testing.T, input []byte) {
		if p, payload, ok := signing.Parse(input); ok && !bytes.Equal(p.PAE(payload), input) {
			t.Errorf("%q is taken for %q over %q", input, p, payload)
		}
	})
}
