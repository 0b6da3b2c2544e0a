package tpmkey

import (
	"crypto/ecdsa"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey/internal/area"
)

// oidLoadableKey is id-loadablekey of draft-bottomley-tpm2-keys: a key that TPM2_Load takes as it is.
var oidLoadableKey = asn1.ObjectIdentifier{2, 23, 133, 10, 1, 3}

// tss2Key is TPMKey of draft-bottomley-tpm2-keys, section 3. The optional fields that a bcd key never has are here
// so that a record with one is told apart from a damaged one.
type tss2Key struct {
	Type        asn1.ObjectIdentifier
	EmptyAuth   bool          `asn1:"optional,explicit,tag:0"`
	Policy      asn1.RawValue `asn1:"optional,explicit,tag:1"`
	Secret      asn1.RawValue `asn1:"optional,explicit,tag:2"`
	AuthPolicy  asn1.RawValue `asn1:"optional,explicit,tag:3"`
	Description asn1.RawValue `asn1:"optional,explicit,tag:4"`
	RSAParent   asn1.RawValue `asn1:"optional,explicit,tag:5"`
	Parent      int64
	Public      []byte
	Private     []byte
}

// tss2Written is what bcd writes of it: [tss2Key] without the fields that are always absent.
type tss2Written struct {
	Type      asn1.ObjectIdentifier
	EmptyAuth bool `asn1:"explicit,tag:0"`
	Parent    int64
	Public    []byte
	Private   []byte
}

// tpmRecord is the record of a key in a TPM.
type tpmRecord struct {
	parent  tpm2.TPMHandle // persistent, or TPM_RH_OWNER for the primary key that the draft names
	public  tpm2.TPM2BPublic
	private tpm2.TPM2BPrivate
	point   *ecdsa.PublicKey // of public
}

// newTPMRecord checks that the public area is exactly one of a node key.
func newTPMRecord(parent tpm2.TPMHandle, public tpm2.TPM2BPublic, private tpm2.TPM2BPrivate) (*tpmRecord, error) {
	contents, err := public.Contents()
	if err != nil {
		return nil, fmt.Errorf("cannot read the public area: %w", err)
	}
	point, err := area.NodeKeyPoint(contents)
	if err != nil {
		return nil, err
	}
	return &tpmRecord{parent: parent, public: public, private: private, point: point}, nil
}

// encode returns the PEM text.
func (r *tpmRecord) encode() []byte {
	der, err := asn1.Marshal(tss2Written{
		Type: oidLoadableKey, EmptyAuth: true, Parent: int64(r.parent),
		Public: tpm2.Marshal(r.public), Private: tpm2.Marshal(r.private),
	})
	if err != nil {
		// Every field is of a type that asn1 encodes whatever its value.
		panic("tpmkey: " + err.Error())
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemTSS2, Bytes: der})
}

// parseTPMRecord reads the DER of a record. It takes only what encode writes: a record that another program made has
// other attributes than a node's key must have.
func parseTPMRecord(der []byte) (*tpmRecord, error) {
	var k tss2Key
	if rest, err := asn1.Unmarshal(der, &k); err != nil {
		return nil, err
	} else if len(rest) > 0 {
		return nil, errors.New("something follows it")
	}
	switch {
	case !k.Type.Equal(oidLoadableKey):
		return nil, fmt.Errorf("it is of the type %v, not a loadable key (%v)", k.Type, oidLoadableKey)
	case !k.EmptyAuth:
		return nil, errors.New("the key has a password of its own")
	case len(k.Policy.FullBytes) > 0, len(k.AuthPolicy.FullBytes) > 0:
		return nil, errors.New("the key has a policy")
	case len(k.Secret.FullBytes) > 0, len(k.RSAParent.FullBytes) > 0, len(k.Description.FullBytes) > 0:
		return nil, errors.New("it has a field that a node's key does not have")
	case k.Parent != int64(tpm2.TPMRHOwner) && k.Parent>>24 != persistentHandles:
		return nil, fmt.Errorf("its parent 0x%x is neither a persistent handle nor the owner hierarchy", k.Parent)
	}
	public, err := area.Unmarshal[tpm2.TPM2BPublic](k.Public)
	if err != nil {
		return nil, fmt.Errorf("cannot read the public area: %w", err)
	}
	private, err := area.Unmarshal[tpm2.TPM2BPrivate](k.Private)
	if err != nil {
		return nil, fmt.Errorf("cannot read the private area: %w", err)
	}
	if len(private.Buffer) == 0 {
		return nil, errors.New("the private area is empty")
	}
	return newTPMRecord(tpm2.TPMHandle(k.Parent), *public, *private)
}

// persistentHandles is TPM_HT_PERSISTENT, the top byte of a persistent object's handle.
const persistentHandles = 0x81
