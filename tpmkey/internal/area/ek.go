package area

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-tpm/tpm2"
)

// EK is one kind of endorsement key: a template of the TCG's EK Credential Profile (version 2.4 and later, annex B), which
// TPM makers give certificates for.
type EK struct {
	// Name is the profile's name of the template.
	Name string
	// Index is the NV index of the certificate.
	Index uint32
	// Public is the public area before the TPM fills in the key.
	Public tpm2.TPMTPublic
	// High says that the key's policy is PolicyB, PolicyOR of A and C; else it is PolicyA.
	High bool
	// Nonce is the NV index of a nonce that a maker derives the key with, and Template that of a template of its own. They
	// are 0 where the profile has none.
	Nonce, Template uint32
}

// EKs are the endorsement keys that bcd knows: the low range, then the high range by index. H-5 is left out: it is on
// the curve SM2, for which Go has nothing.
var EKs = []EK{
	{Name: "L-1", Index: 0x01c00002, Public: rsaEK(2048, tpm2.TPMAlgSHA256, 128, false), Nonce: 0x01c00003, Template: 0x01c00004},
	{Name: "L-2", Index: 0x01c0000a, Public: eccEK(tpm2.TPMECCNistP256, tpm2.TPMAlgSHA256, 128, false), Nonce: 0x01c0000b, Template: 0x01c0000c},
	{Name: "H-1", Index: 0x01c00012, Public: rsaEK(2048, tpm2.TPMAlgSHA256, 128, true), High: true},
	{Name: "H-2", Index: 0x01c00014, Public: eccEK(tpm2.TPMECCNistP256, tpm2.TPMAlgSHA256, 128, true), High: true},
	{Name: "H-3", Index: 0x01c00016, Public: eccEK(tpm2.TPMECCNistP384, tpm2.TPMAlgSHA384, 256, true), High: true},
	{Name: "H-4", Index: 0x01c00018, Public: eccEK(tpm2.TPMECCNistP521, tpm2.TPMAlgSHA512, 256, true), High: true},
	{Name: "H-6", Index: 0x01c0001c, Public: rsaEK(3072, tpm2.TPMAlgSHA384, 256, true), High: true},
	{Name: "H-7", Index: 0x01c0001e, Public: rsaEK(4096, tpm2.TPMAlgSHA384, 256, true), High: true},
}

// EKByName finds an endorsement key's template.
func EKByName(name string) (EK, bool) {
	for _, ek := range EKs {
		if ek.Name == name {
			return ek, true
		}
	}
	return EK{}, false
}

// Filled returns the public area of the endorsement key with this public key. It refuses a key of another kind, size, curve
// or exponent.
func (ek EK) Filled(key crypto.PublicKey) (tpm2.TPMTPublic, error) {
	public := ek.Public
	switch key := key.(type) {
	case *rsa.PublicKey:
		parms, err := public.Parameters.RSADetail()
		if err != nil {
			return tpm2.TPMTPublic{}, fmt.Errorf("the template %s is not RSA", ek.Name)
		}
		if key.N.BitLen() != int(parms.KeyBits) || key.N.Bit(0) == 0 || key.E != defaultExponent {
			return tpm2.TPMTPublic{}, fmt.Errorf("the RSA key has %d bits and the exponent %d, the template %s has %d and %d",
				key.N.BitLen(), key.E, ek.Name, parms.KeyBits, defaultExponent)
		}
		public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: key.N.Bytes()})
	case *ecdsa.PublicKey:
		parms, err := public.Parameters.ECCDetail()
		if err != nil {
			return tpm2.TPMTPublic{}, fmt.Errorf("the template %s is not ECC", ek.Name)
		}
		if key.Curve != curves[parms.CurveID] {
			return tpm2.TPMTPublic{}, fmt.Errorf("the key is on the curve %s, which is not that of the template %s", key.Curve.Params().Name, ek.Name)
		}
		point, err := key.Bytes() // 04, x, y
		if err != nil {
			return tpm2.TPMTPublic{}, err
		}
		half := len(point) / 2
		public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
			X: tpm2.TPM2BECCParameter{Buffer: point[1 : 1+half]},
			Y: tpm2.TPM2BECCParameter{Buffer: point[1+half:]},
		})
	default:
		return tpm2.TPMTPublic{}, fmt.Errorf("an endorsement key is not a %T", key)
	}
	return public, nil
}

// Key returns the public key of an area that is this endorsement key's, and refuses any other area.
func (ek EK) Key(public *tpm2.TPMTPublic) (crypto.PublicKey, error) {
	if !isTemplate(public, ek.Public) {
		return nil, fmt.Errorf("the public area is not that of the template %s", ek.Name)
	}
	switch public.Type {
	case tpm2.TPMAlgRSA:
		modulus, err := public.Unique.RSA()
		if err != nil {
			return nil, err
		}
		parms, err := public.Parameters.RSADetail()
		if err != nil {
			return nil, err
		}
		return tpm2.RSAPub(parms, modulus)
	default:
		parms, err := public.Parameters.ECCDetail()
		if err != nil {
			return nil, err
		}
		unique, err := public.Unique.ECC()
		if err != nil {
			return nil, err
		}
		curve := curves[parms.CurveID]
		size := (curve.Params().BitSize + 7) / 8
		x, y := unique.X.Buffer, unique.Y.Buffer
		if len(x) > size || len(y) > size {
			return nil, errors.New("the point is too large for its curve")
		}
		point := make([]byte, 1+2*size)
		point[0] = 4
		copy(point[1+size-len(x):], x)
		copy(point[1+2*size-len(y):], y)
		return ecdsa.ParseUncompressedPublicKey(curve, point)
	}
}

// WithUniqueOf returns the template with the unique field of another one, a maker's own, where that is the only difference.
func (ek EK) WithUniqueOf(other *tpm2.TPMTPublic) (EK, bool) {
	if !isTemplate(other, ek.Public) {
		return EK{}, false
	}
	ek.Public.Unique = other.Unique
	return ek, true
}

// WithNonce returns the template with a maker's nonce: at the start of the modulus, or of x (profile, annex B.3). A nonce
// that does not fit makes no key.
func (ek EK) WithNonce(nonce []byte) (EK, bool) {
	if modulus, err := ek.Public.Unique.RSA(); err == nil {
		if len(nonce) > len(modulus.Buffer) {
			return EK{}, false
		}
		padded := make([]byte, len(modulus.Buffer))
		copy(padded, nonce)
		ek.Public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: padded})
		return ek, true
	}
	point, err := ek.Public.Unique.ECC()
	if err != nil || len(nonce) > len(point.X.Buffer) {
		return EK{}, false
	}
	padded := make([]byte, len(point.X.Buffer))
	copy(padded, nonce)
	ek.Public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{X: tpm2.TPM2BECCParameter{Buffer: padded}, Y: point.Y})
	return ek, true
}

// defaultExponent is what 0 in a public area stands for.
const defaultExponent = 65537

var curves = map[tpm2.TPMECCCurve]elliptic.Curve{
	tpm2.TPMECCNistP256: elliptic.P256(),
	tpm2.TPMECCNistP384: elliptic.P384(),
	tpm2.TPMECCNistP521: elliptic.P521(),
}

// The unique field of a low-range template is zeros as long as the key, that of a high-range one is empty.

func rsaEK(bits tpm2.TPMKeyBits, nameAlg tpm2.TPMAlgID, aes tpm2.TPMKeyBits, high bool) tpm2.TPMTPublic {
	var modulus []byte
	if !high {
		modulus = make([]byte, bits/8)
	}
	return tpm2.TPMTPublic{
		Type: tpm2.TPMAlgRSA, NameAlg: nameAlg, ObjectAttributes: ekAttributes(high), AuthPolicy: ekPolicy(nameAlg, high),
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgRSA, &tpm2.TPMSRSAParms{Symmetric: aesCFB(aes), KeyBits: bits}),
		Unique:     tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: modulus}),
	}
}

func eccEK(curve tpm2.TPMECCCurve, nameAlg tpm2.TPMAlgID, aes tpm2.TPMKeyBits, high bool) tpm2.TPMTPublic {
	point := new(tpm2.TPMSECCPoint)
	if !high {
		size := (curves[curve].Params().BitSize + 7) / 8
		point.X.Buffer, point.Y.Buffer = make([]byte, size), make([]byte, size)
	}
	return tpm2.TPMTPublic{
		Type: tpm2.TPMAlgECC, NameAlg: nameAlg, ObjectAttributes: ekAttributes(high), AuthPolicy: ekPolicy(nameAlg, high),
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{Symmetric: aesCFB(aes), CurveID: curve}),
		Unique:     tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, point),
	}
}

func aesCFB(bits tpm2.TPMKeyBits) tpm2.TPMTSymDefObject {
	return tpm2.TPMTSymDefObject{
		Algorithm: tpm2.TPMAlgAES,
		KeyBits:   tpm2.NewTPMUSymKeyBits(tpm2.TPMAlgAES, bits),
		Mode:      tpm2.NewTPMUSymMode(tpm2.TPMAlgAES, tpm2.TPMAlgCFB),
	}
}

func ekAttributes(high bool) tpm2.TPMAObject {
	return tpm2.TPMAObject{
		FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: high, AdminWithPolicy: true,
		Restricted: true, Decrypt: true,
	}
}

func ekPolicy(nameAlg tpm2.TPMAlgID, high bool) tpm2.TPM2BDigest {
	if high {
		return tpm2.TPM2BDigest{Buffer: policyB(nameAlg)}
	}
	return tpm2.TPM2BDigest{Buffer: policyA(nameAlg)}
}

// PolicyBranches returns PolicyA and PolicyC, whose PolicyOR a high-range key's policy is.
func (ek EK) PolicyBranches() [][]byte {
	return [][]byte{policyA(ek.Public.NameAlg), policyC[ek.Public.NameAlg]}
}

// policyA is TPM2_PolicySecret with the endorsement hierarchy and an empty policyRef (TPM 2.0 Part 3, section 23.4).
func policyA(alg tpm2.TPMAlgID) []byte {
	secret := extend(alg, zeros(alg), uint32s(uint32(tpm2.TPMCCPolicySecret), uint32(tpm2.TPMRHEndorsement)))
	return extend(alg, secret, nil) // the policyRef
}

// policyB is TPM2_PolicyOR of A and C (TPM 2.0 Part 3, section 23.6).
func policyB(alg tpm2.TPMAlgID) []byte {
	return extend(alg, zeros(alg), slices.Concat(uint32s(uint32(tpm2.TPMCCPolicyOR)), policyA(alg), policyC[alg]))
}

// policyC is TPM2_PolicyAuthorizeNV with the profile's NV indices 0x01c07f01 to 0x01c07f03, which a TPM's owner may define.
// bcd never takes this branch. The digests are the profile's (annex B.6.4).
var policyC = map[tpm2.TPMAlgID][]byte{
	tpm2.TPMAlgSHA256: unhex("3767e2edd43ff45a3a7e1eaefcef78643dca964632e7aad82c673a30d8633fde"),
	tpm2.TPMAlgSHA384: unhex("d6032ce61f2fb3c240eb3cf6a33237ef2b6a16f4293c22b455e261cffd217ad5b4947c2d73e63005eed2dc2b3593d165"),
	tpm2.TPMAlgSHA512: unhex("589ee1e146544716e8deafe6db247b01b81e9f9c7dd16b814aa159138749105fba5388dd1dea702f35240c184933121e2c61b8f50d3ef91393a49a38c3f73fc8"),
}

func hashOf(alg tpm2.TPMAlgID) crypto.Hash {
	h, err := alg.Hash()
	if err != nil {
		panic("area: " + err.Error()) // the algorithms are those of the table above
	}
	return h
}

func zeros(alg tpm2.TPMAlgID) []byte { return make([]byte, hashOf(alg).Size()) }

func extend(alg tpm2.TPMAlgID, old, data []byte) []byte {
	h := hashOf(alg).New()
	h.Write(old)
	h.Write(data)
	return h.Sum(nil)
}

func uint32s(values ...uint32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic("area: " + err.Error())
	}
	return b
}
