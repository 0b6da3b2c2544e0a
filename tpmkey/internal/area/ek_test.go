package area_test

import (
	"encoding/hex"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey/internal/area"
)

// The digests are those that the TCG's EK Credential Profile prints (annexes B.3 and B.6), not what the code computes them from.
func TestPolicyDigestsAreTheProfiles(t *testing.T) {
	want := map[string]string{
		"L-1": "837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa",
		"L-2": "837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa",
		"H-1": "ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0",
		"H-2": "ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0",
		"H-3": "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12",
		"H-4": "b8221ca69e8550a4914de3faa6a18c072cc01208073a928d5d66d59ef79e49a429c41a6b269571d57edb25fbdb1838425608b413cd616a5f6db5b6071af99bea",
		"H-6": "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12",
		"H-7": "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12",
	}
	if len(area.EKs) != len(want) {
		t.Errorf("%d templates, want %d", len(area.EKs), len(want))
	}
	for _, kind := range area.EKs {
		if got := hex.EncodeToString(kind.Public.AuthPolicy.Buffer); got != want[kind.Name] {
			t.Errorf("%s: the policy is %s, want %s", kind.Name, got, want[kind.Name])
		}
		attributes := "000300b2"
		if kind.High {
			attributes = "000300f2"
		}
		if got := hex.EncodeToString(tpm2.Marshal(kind.Public.ObjectAttributes)); got != attributes {
			t.Errorf("%s: the attributes are %s, want %s", kind.Name, got, attributes)
		}
	}
}

// The profile's own bytes of the two low-range templates are in go-tpm.
func TestTheLowRangeIsGoTPMs(t *testing.T) {
	for name, want := range map[string]tpm2.TPMTPublic{"L-1": tpm2.RSAEKTemplate, "L-2": tpm2.ECCEKTemplate} {
		kind, known := area.EKByName(name)
		if got := hex.EncodeToString(tpm2.Marshal(kind.Public)); !known || got != hex.EncodeToString(tpm2.Marshal(want)) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// akSeedSHA256 is what "printf %s 'better-compute bcd AK v1' | sha256sum" says.
const akSeedSHA256 = "beefdcda5b4e584b6ea42b284221eda4f0d580783556d0a9f9da1b3e8511d84a"

func TestTheTemplatesOfOurKeys(t *testing.T) {
	for name, test := range map[string]struct {
		public tpm2.TPMTPublic
		want   string
	}{
		// type, nameAlg, attributes, no policy, no symmetric, ECDSA with SHA-256, P-256, no KDF, unique
		"node": {area.NodeKey, "0023" + "000b" + "00040472" + "0000" + "0010" + "0018000b" + "0003" + "0010" + "0000" + "0000"},
		"AK": {area.AK(), "0023" + "000b" + "00050472" + "0000" + "0010" + "0018000b" + "0003" + "0010" +
			"0020" + akSeedSHA256 + "0000"},
	} {
		if got := hex.EncodeToString(tpm2.Marshal(test.public)); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}
