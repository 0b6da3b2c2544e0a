package tpmkey

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/go-tpm/tpm2"
)

// describe reads what the TPM says of itself.
func (l *link) describe(id *Identity) error {
	read, err := tpm2.GetCapability{
		Capability: tpm2.TPMCapTPMProperties, Property: uint32(tpm2.TPMPTFamilyIndicator),
		PropertyCount: uint32(tpm2.TPMPTFirmwareVersion2-tpm2.TPMPTFamilyIndicator) + 1,
	}.Execute(l)
	if err != nil {
		return fmt.Errorf("cannot read the TPM's properties: %w", err)
	}
	listed, err := read.CapabilityData.Data.TPMProperties()
	if err != nil {
		return fmt.Errorf("cannot read the TPM's properties: %w", err)
	}
	values := make(map[tpm2.TPMPT]uint32)
	for _, p := range listed.TPMProperty {
		values[p.Property] = p.Value
	}
	id.Spec = letters(values[tpm2.TPMPTFamilyIndicator])
	if revision := values[tpm2.TPMPTRevision]; revision > 0 {
		id.Spec = fmt.Sprintf("%s revision %d.%02d", id.Spec, revision/100, revision%100)
	}
	id.Manufacturer = letters(values[tpm2.TPMPTManufacturer])
	id.Model = letters(values[tpm2.TPMPTVendorString1], values[tpm2.TPMPTVendorString2],
		values[tpm2.TPMPTVendorString3], values[tpm2.TPMPTVendorString4])
	v1, v2 := values[tpm2.TPMPTFirmwareVersion1], values[tpm2.TPMPTFirmwareVersion2]
	id.FirmwareVersion = fmt.Sprintf("%d.%d.%d.%d", v1>>16, v1&0xffff, v2>>16, v2&0xffff)
	return nil
}

// letters reads properties of four letters each. What is not printable ASCII is padding.
func letters(values ...uint32) string {
	var text []byte
	for _, v := range values {
		text = binary.BigEndian.AppendUint32(text, v)
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, string(text)))
}
