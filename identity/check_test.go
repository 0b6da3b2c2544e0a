package identity_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/internal/signing"
)

// faults has one fault for every check after the signature's, in the protocol's order. They combine.
var faults = []struct {
	check identity.CheckName
	bend  func(*answer)
}{
	{identity.CheckCSR, func(a *answer) { h := sha256.Sum256([]byte("another CSR")); a.admission.CSRSHA256 = h[:] }},
	{identity.CheckKey, func(a *answer) { a.leaf.pub = newKey(elliptic.P256()).Public() }},
	{identity.CheckSPIFFE, func(a *answer) { a.leaf.uris[0] = strings.Replace(spiffe, domain, "evil.example.com", 1) }},
	{identity.CheckRole, func(a *answer) { a.leaf.ous = []string{"bc-role:node", "bc-role:site"} }},
	{identity.CheckRequest, func(a *answer) { h := sha256.Sum256([]byte("another body")); a.admission.RequestSHA256 = h[:] }},
	{identity.CheckSite, func(a *answer) { a.want.Site = "site_other" }},
	{identity.CheckNodeID, func(a *answer) { a.want.NodeID = "node_other" }},
	{identity.CheckAttestationKey, func(a *answer) { a.want.AttestationKey = ak }},
	{identity.CheckSameNode, func(a *answer) {
		before := honest(newCSR(newKey(elliptic.P256())))
		before.leaf.uris = append(before.leaf.uris, ak)
		a.want.Current = must(before.check())
	}},
	{identity.CheckChain, func(a *answer) { a.leaf.ca = foreignCA }},
	{identity.CheckAlgorithm, nil}, // the key is decided before the answer; see bend
	{identity.CheckUsage, func(a *answer) { a.leaf.usage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }},
	{identity.CheckLifetime, func(a *answer) { a.leaf.life = 24*time.Hour + time.Second }},
	{identity.CheckDates, func(a *answer) { a.admission.ServerTime = now.Add(25 * time.Hour) }},
	{identity.CheckGeneration, func(a *answer) { a.admission.Generation = 0 }},
	{identity.CheckContent, func(a *answer) { a.admission.AllowedKinds = []string{"node.reboot", ""} }},
}

func bent(checks ...int) *answer {
	curve := elliptic.P256()
	for _, i := range checks {
		if faults[i].bend == nil {
			curve = elliptic.P384()
		}
	}
	a := honest(newCSR(newKey(curve)))
	for _, i := range checks {
		if f := faults[i].bend; f != nil {
			f(a)
		}
	}
	return a
}

func wantFailure(t *testing.T, err error, check identity.CheckName) {
	t.Helper()
	if got := identity.FailedCheck(err); got != check {
		t.Errorf("failed check %q, want %q: %v", got, check, err)
		return
	}
	if fault.CodeOf(err).Exit() != fault.ExitVerification || fault.HintOf(err) == "" || !strings.Contains(err.Error(), string(check)) {
		t.Errorf("%v (code %s, hint %q)", err, fault.CodeOf(err), fault.HintOf(err))
	}
}

func TestEachCheckByName(t *testing.T) {
	for i, f := range faults {
		_, err := bent(i).check()
		wantFailure(t, err, f.check)
	}
}

// Req: JF-058
func TestTheEarlierOfTwoFaultsIsReported(t *testing.T) {
	for i := range faults {
		for j := i + 1; j < len(faults); j++ {
			t.Run(string(faults[i].check)+" and "+string(faults[j].check), func(t *testing.T) {
				_, err := bent(j, i).check()
				wantFailure(t, err, faults[i].check)
			})
		}
	}
}

func TestAnHonestAnswer(t *testing.T) {
	a := honest(newCSR(newKey(elliptic.P256())))
	next := pin.OfSPKI([]byte("next"))
	a.admission.NextJoinSigningKey = []string{next.String()}
	id, err := a.check()
	if err != nil {
		t.Fatal(err)
	}
	leaf := must(x509.ParseCertificate(a.admission.Chain[0]))
	want := &identity.Identity{
		Version: 1, NodeID: nodeID, Site: site, TrustDomain: domain, Role: "node", Generation: 1,
		Chain: identity.Certificates{leaf}, NodeCA: identity.Bundle{nodeCA.cert.Raw}, CommandTrust: identity.Bundle{nodeCA.cert.Raw},
		AllowedKinds: []string{"node.reboot", "fabric.*"}, NextPins: identity.NextPins{JoinSigningKey: pin.Set{next}},
		KeySPKISHA256: pin.OfCertificate(leaf), JoinedAt: now, IssuedAt: now,
	}
	if diff := cmp.Diff(want, id); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if id.SPIFFEID() != spiffe {
		t.Errorf("SPIFFE ID %q", id.SPIFFEID())
	}
}

// Req: JF-060 JF-061
func TestAnswersForAnotherRequestOrKey(t *testing.T) {
	mine, other := newCSR(newKey(elliptic.P256())), newCSR(newKey(elliptic.P256()))

	a := honest(other) // a good answer, for another machine
	a.want = honest(mine).want
	_, err := a.check()
	wantFailure(t, err, identity.CheckCSR)

	a = honest(other) // the same with our hash in it
	a.want, a.admission.CSRSHA256 = honest(mine).want, honest(mine).admission.CSRSHA256
	_, err = a.check()
	wantFailure(t, err, identity.CheckKey)

	for name, chain := range map[string][][]byte{"none": {}, "not a certificate": {[]byte("x")}, "too large": {make([]byte, identity.MaxDER+1)}} {
		a = honest(mine)
		a.admission.Chain = chain
		_, err = a.check()
		if identity.FailedCheck(err) != identity.CheckKey {
			t.Errorf("%s: %v", name, err)
		}
	}
	a = honest(mine)
	a.admission.CSRSHA256 = nil
	_, err = a.check()
	wantFailure(t, err, identity.CheckCSR)
}

// Req: JF-062 NC-006 NC-007 NC-008 NC-009
func TestSPIFFENames(t *testing.T) {
	for name, uris := range map[string][]string{
		"none":                  nil,
		"only a statement":      {ak},
		"statement first":       {ak, spiffe},
		"two identities":        {spiffe, spiffe},
		"second identity":       {spiffe, strings.Replace(spiffe, nodeID, "node_other", 1)},
		"web address beside it": {spiffe, "https://example.com/"},
		"other urn beside it":   {spiffe, "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66"},
		"upper-case scheme":     {strings.Replace(spiffe, "spiffe", "SPIFFE", 1)},
		"upper case beside it":  {spiffe, "URN:BC:tpm-ak:x"},
		"slash at the end":      {spiffe + "/"},
		"query":                 {spiffe + "?x"},
		"fragment":              {spiffe + "#x"},
		"port":                  {strings.Replace(spiffe, domain, domain+":443", 1)},
		"escaped":               {strings.Replace(spiffe, "/node_", "/%6eode_", 1)},
		"other trust domain":    {strings.Replace(spiffe, domain, "example.com", 1)},
		"other site":            {strings.Replace(spiffe, site, "site_other", 1)},
		"other node":            {strings.Replace(spiffe, nodeID, "node_other", 1)},
		"no site":               {"spiffe://" + domain + "/node/" + nodeID},
	} {
		a := honest(newCSR(newKey(elliptic.P256())))
		a.leaf.uris = uris
		if _, err := a.check(); identity.FailedCheck(err) != identity.CheckSPIFFE {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Names that agree with the leaf and would still shift the parts of an ID.
	for _, node := range []string{"", ".", "..", "a/b", "a%2fb", "a b", "é", strings.Repeat("n", 256)} {
		a := honest(newCSR(newKey(elliptic.P256())))
		a.admission.NodeID = node
		a.leaf.uris = nil
		if _, err := a.check(); identity.FailedCheck(err) != identity.CheckSPIFFE {
			t.Errorf("node id %q: %v", node, err)
		}
	}
	a := honest(newCSR(newKey(elliptic.P256())))
	a.leaf.uris = []string{spiffe, "urn:bc:later:x", ak}
	id, err := a.check()
	if err != nil {
		t.Fatalf("statements: %v", err)
	}
	if got := must(identity.Statements(id.Leaf())); !cmp.Equal(got, []string{"urn:bc:later:x", ak}) {
		t.Errorf("statements %q", got)
	}
	if got := must(identity.AttestationKeys(id.Leaf())); !cmp.Equal(got, []string{ak}) {
		t.Errorf("attestation keys %q", got)
	}
}

// Req: JF-063 NC-014
func TestRoles(t *testing.T) {
	for _, tc := range []struct {
		asked, body string
		ous         []string
		good        bool
	}{
		{"node", "node", []string{"bc-role:node"}, true},
		{"node", "node-tenant", []string{"bc-role:node-tenant"}, true},
		{"site", "site", []string{"bc-role:site"}, true},
		{"ramdisk", "ramdisk", []string{"bc-role:ramdisk"}, true},
		{"node", "node", []string{"bc-role:node", "Ops"}, true},
		{"", "node-tenant", []string{"bc-role:node-tenant"}, true}, // a renewal: the current leaf decides

		{"node", "node", nil, false},
		{"node", "node", []string{"node"}, false},
		{"node", "node", []string{"bc-role:node", "bc-role:node"}, false},
		{"node", "node", []string{"bc-role:node-tenant"}, false},
		{"node", "node-tenant", []string{"bc-role:node"}, false},
		{"node", "site", []string{"bc-role:site"}, false},
		{"node", "ramdisk", []string{"bc-role:ramdisk"}, false},
		{"site", "node", []string{"bc-role:node"}, false},
		{"site", "node-tenant", []string{"bc-role:node-tenant"}, false},
		{"ramdisk", "node", []string{"bc-role:node"}, false},
		{"", "root", []string{"bc-role:root"}, false},
		{"other", "node", []string{"bc-role:node"}, false},
	} {
		a := honest(newCSR(newKey(elliptic.P256())))
		a.want.Role, a.admission.Role, a.leaf.ous = tc.asked, tc.body, tc.ous
		a.leaf.life = time.Hour
		_, err := a.check()
		if tc.good && err != nil || !tc.good && identity.FailedCheck(err) != identity.CheckRole {
			t.Errorf("asked %q, body %q, OU %q: %v", tc.asked, tc.body, tc.ous, err)
		}
	}
}

func TestFurtherChecks(t *testing.T) {
	renewal := func(a *answer) {
		a.want.Role, a.want.Current = "", admit(newCSR(newKey(elliptic.P256())), nil)
		a.want.Current.Generation = 3
		a.admission.Generation = 3
	}
	for name, tc := range map[string]struct {
		check identity.CheckName // "" for an answer that is good
		bend  func(*answer)
	}{
		"any site in a bootstrap":      {"", func(a *answer) { a.want.Site = "" }},
		"the node id that was told":    {"", func(a *answer) { a.want.NodeID = nodeID }},
		"our attestation key":          {"", func(a *answer) { a.want.AttestationKey = ak; a.leaf.uris = append(a.leaf.uris, ak) }},
		"another attestation key":      {identity.CheckAttestationKey, func(a *answer) { a.want.AttestationKey = ak + "0"; a.leaf.uris = append(a.leaf.uris, ak) }},
		"ours and another":             {identity.CheckAttestationKey, func(a *answer) { a.want.AttestationKey = ak; a.leaf.uris = append(a.leaf.uris, ak, ak+"0") }},
		"renewal":                      {"", renewal},
		"renewal, later generation":    {"", func(a *answer) { renewal(a); a.admission.Generation = 4 }},
		"rejoin, later generation":     {identity.CheckGeneration, func(a *answer) { renewal(a); a.want.Rejoins = true; a.admission.Generation = 4 }},
		"rejoin, same generation":      {"", func(a *answer) { renewal(a); a.want.Rejoins = true }},
		"renewal, earlier generation":  {identity.CheckGeneration, func(a *answer) { renewal(a); a.admission.Generation = 2 }},
		"renewal of another node":      {identity.CheckSameNode, func(a *answer) { renewal(a); a.want.Current.NodeID = "node_other" }},
		"renewal into another site":    {identity.CheckSameNode, func(a *answer) { renewal(a); a.want.Current.Site = "site_other" }},
		"renewal into another domain":  {identity.CheckSameNode, func(a *answer) { renewal(a); a.want.Current.TrustDomain = "example.com" }},
		"renewal as another role":      {identity.CheckSameNode, func(a *answer) { renewal(a); a.want.Current.Role = "node-tenant" }},
		"renewal with a new statement": {identity.CheckSameNode, func(a *answer) { renewal(a); a.leaf.uris = append(a.leaf.uris, ak) }},
		"lifetime of exactly 24 h":     {"", func(a *answer) { a.leaf.life = 24 * time.Hour }},
		"ramdisk for exactly 2 h":      {"", ramdisk(2 * time.Hour)},
		"ramdisk for more":             {identity.CheckLifetime, ramdisk(2*time.Hour + time.Second)},
		"certificate of the future":    {identity.CheckDates, func(a *answer) { a.leaf.notBefore = now.Add(time.Second) }},
		"future, of a foreign CA":      {identity.CheckChain, func(a *answer) { a.leaf.ca = foreignCA; a.leaf.notBefore = now.Add(time.Hour) }},
		"future, older than its CA": {identity.CheckDates, func(a *answer) {
			a.admission.ServerTime = nodeCA.cert.NotBefore.Add(-time.Hour)
			a.leaf.notBefore = nodeCA.cert.NotBefore.Add(time.Hour)
		}},
		"certificate of the past": {identity.CheckDates, func(a *answer) { a.leaf.notBefore, a.leaf.life = now.Add(-2*time.Hour), time.Hour }},
		"CA of the past": {identity.CheckDates, func(a *answer) {
			a.leaf.notBefore = nodeCA.cert.NotAfter
			a.admission.ServerTime = a.leaf.notBefore.Add(time.Minute)
		}},
		"no usage":                      {identity.CheckUsage, func(a *answer) { a.leaf.usage = nil }},
		"any usage":                     {identity.CheckUsage, func(a *answer) { a.leaf.usage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} }},
		"a CA":                          {identity.CheckUsage, func(a *answer) { a.leaf.isCA = true; a.leaf.keyUsage |= x509.KeyUsageCertSign }},
		"a key that may not sign":       {identity.CheckUsage, func(a *answer) { a.leaf.keyUsage = x509.KeyUsageKeyEncipherment }},
		"client and server":             {"", func(a *answer) { a.leaf.usage = append(a.leaf.usage, x509.ExtKeyUsageServerAuth) }},
		"no node CA":                    {identity.CheckChain, func(a *answer) { a.admission.NodeCA = nil }},
		"two node CAs":                  {"", func(a *answer) { a.admission.NodeCA = [][]byte{foreignCA.cert.Raw, nodeCA.cert.Raw} }},
		"a node CA that does not parse": {"", func(a *answer) { a.admission.NodeCA = [][]byte{[]byte("x"), nodeCA.cert.Raw} }},
		"a chain of 8":                  {"", longChain(8)},
		"a chain of 9":                  {identity.CheckChain, longChain(9)},
		"junk in the chain":             {identity.CheckChain, func(a *answer) { a.admission.Chain = [][]byte{a.leaf.issue(), []byte("x")} }},
		"65 KiB in the chain":           {identity.CheckChain, func(a *answer) { a.admission.Chain = [][]byte{a.leaf.issue(), make([]byte, 65<<10)} }},
		"33 node CAs":                   {identity.CheckChain, func(a *answer) { a.admission.NodeCA = make([][]byte, identity.MaxBundle+1) }},
		"33 command CAs":                {identity.CheckContent, func(a *answer) { a.admission.CommandTrust = make([][]byte, identity.MaxBundle+1) }},
		"257 kinds":                     {identity.CheckContent, func(a *answer) { a.admission.AllowedKinds = make([]string, identity.MaxKinds+1) }},
		"a kind with a space":           {identity.CheckContent, func(a *answer) { a.admission.AllowedKinds = []string{"a b"} }},
		"a malformed next pin":          {identity.CheckContent, func(a *answer) { a.admission.NextServingCA = []string{"sha256/x"} }},
		"4 next pins": {identity.CheckContent, func(a *answer) {
			p := pin.OfSPKI(nil).String()
			a.admission.NextJoinEncryptionKey = []string{p, p, p, p}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a := honest(newCSR(newKey(elliptic.P256())))
			tc.bend(a)
			_, err := a.check()
			if tc.check == "" && err != nil {
				t.Errorf("a good answer: %v", err)
			}
			if tc.check != "" {
				wantFailure(t, err, tc.check)
			}
		})
	}
}

func ramdisk(life time.Duration) func(*answer) {
	return func(a *answer) {
		a.want.Role, a.admission.Role, a.leaf.ous, a.leaf.life = "ramdisk", "ramdisk", []string{"bc-role:ramdisk"}, life
	}
}

func longChain(n int) func(*answer) {
	return func(a *answer) {
		a.admission.Chain = [][]byte{a.leaf.issue()}
		for len(a.admission.Chain) < n {
			a.admission.Chain = append(a.admission.Chain, nodeCA.cert.Raw)
		}
	}
}

// What an operator pinned before a rotation stays good for a machine that slept through its announcement's end.
func TestNextPinsAreKept(t *testing.T) {
	p := func(s string) pin.Pin { return pin.OfSPKI([]byte(s)) }
	a := honest(newCSR(newKey(elliptic.P256())))
	a.want.Role, a.want.Current = "", admit(newCSR(newKey(elliptic.P256())), nil)
	a.want.Current.NextPins = identity.NextPins{ServingCA: pin.Set{p("a")}, JoinSigningKey: pin.Set{p("b"), p("c"), p("d")}}
	a.want.Current.JoinedAt = now.AddDate(0, -1, 0)
	a.admission.NextJoinSigningKey = []string{p("e").String(), p("c").String()}
	a.admission.CommandTrust = nil
	id, err := a.check()
	if err != nil {
		t.Fatal(err)
	}
	want := identity.NextPins{ServingCA: pin.Set{p("a")}, JoinSigningKey: pin.Set{p("e"), p("c"), p("b")}}
	if diff := cmp.Diff(want, id.NextPins); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !id.JoinedAt.Equal(a.want.Current.JoinedAt) || !id.IssuedAt.Equal(now) {
		t.Errorf("joined %s, issued %s", id.JoinedAt, id.IssuedAt)
	}
	if len(id.CommandTrust) != 1 {
		t.Error("a renewal without a command trust bundle drops the old one")
	}
}

// signer is a join-signing key with a certificate that nothing but its key is right of.
func signer(curve elliptic.Curve) (*ecdsa.PrivateKey, []byte, pin.Set) {
	key := newKey(curve)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "anyone"},
		NotBefore: now.AddDate(-9, 0, 0), NotAfter: now.AddDate(-8, 0, 0),
	}
	der := must(x509.CreateCertificate(rand.Reader, template, foreignCA.cert, key.Public(), foreignCA.key))
	return key, der, pin.Set{must(pin.Of(key.Public()))}
}

// Req: JF-059
func TestVerifySignature(t *testing.T) {
	key, cert, pins := signer(elliptic.P256())
	_, otherCert, otherPins := signer(elliptic.P256())
	body := []byte("body")
	sig := must(signing.Sign(key, signing.JoinResponse, body))

	if err := identity.VerifySignature(signing.JoinResponse, body, sig, cert, pins); err != nil {
		t.Errorf("a good signature by an expired certificate of a foreign issuer: %v", err)
	}
	if err := identity.VerifySignature(signing.JoinResponse, body, sig, cert, otherPins.With(pins...)); err != nil {
		t.Errorf("one of two pins: %v", err)
	}
	p384, p384Cert, p384Pins := signer(elliptic.P384())
	p384Sig := must(ecdsa.SignASN1(rand.Reader, p384, func() []byte { d := signing.JoinResponse.Digest(body); return d[:] }()))
	for name, err := range map[string]error{
		"changed body":      identity.VerifySignature(signing.JoinResponse, []byte("Body"), sig, cert, pins),
		"no signature":      identity.VerifySignature(signing.JoinResponse, body, nil, cert, pins),
		"changed signature": identity.VerifySignature(signing.JoinResponse, body, append([]byte{}, sig[:len(sig)-1]...), cert, pins),
		"another purpose":   identity.VerifySignature(signing.RenewResponse, body, sig, cert, pins),
		"another pin":       identity.VerifySignature(signing.JoinResponse, body, sig, cert, otherPins),
		"no pin":            identity.VerifySignature(signing.JoinResponse, body, sig, cert, nil),
		"another key":       identity.VerifySignature(signing.JoinResponse, body, sig, otherCert, otherPins),
		"no certificate":    identity.VerifySignature(signing.JoinResponse, body, sig, nil, pins),
		"trailing bytes":    identity.VerifySignature(signing.JoinResponse, body, sig, append(append([]byte{}, cert...), 0), pins),
		"P-384":             identity.VerifySignature(signing.JoinResponse, body, p384Sig, p384Cert, p384Pins),
	} {
		t.Run(name, func(t *testing.T) { wantFailure(t, err, identity.CheckSignature) })
	}
}

func TestCheckDeferral(t *testing.T) {
	csr := newCSR(newKey(elliptic.P256()))
	a := honest(csr)
	good := identity.Deferral{CSRSHA256: a.admission.CSRSHA256, RequestSHA256: a.admission.RequestSHA256, RequestID: "jreq_01k5w"}
	if err := identity.CheckDeferral(good, a.want); err != nil {
		t.Error(err)
	}
	other := sha256.Sum256(nil)
	bad := good
	bad.RequestSHA256, bad.CSRSHA256 = other[:], other[:]
	wantFailure(t, identity.CheckDeferral(bad, a.want), identity.CheckCSR)
	bad = good
	bad.RequestSHA256, bad.RequestID = other[:], ""
	wantFailure(t, identity.CheckDeferral(bad, a.want), identity.CheckRequest)
	bad = good
	for _, id := range []string{"", "jreq\x1b[31m", "jreq_1 --help", "jreq_\n", "jreq_" + strings.Repeat("1", 1<<20)} {
		bad = good
		bad.RequestID = id
		err := identity.CheckDeferral(bad, a.want)
		wantFailure(t, err, identity.CheckContent)
		if text := err.Error(); len(text) > 300 || strings.ContainsAny(text, "\x1b\n") {
			t.Errorf("the error is %.400q", text)
		}
	}
}
