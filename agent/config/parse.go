package config

import (
	"bytes"
	"errors"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/better-compute/bcd/internal/fault"
)

// file is config.toml as it is written. A pointer is nil where the key is not there.
type file struct {
	GatewayURL        *string `toml:"gateway_url"`
	Site              *string `toml:"site"`
	ServingCAPin      any     `toml:"serving_ca_spki_pin"`     // a pin or a list of pins
	JoinSigningPin    any     `toml:"join_signing_key_pin"`    // the same
	JoinEncryptionPin any     `toml:"join_encryption_key_pin"` // the same
	GatewayServerName *string `toml:"gateway_server_name"`
	DataDir           *string `toml:"data_dir"`
	HostRoot          *string `toml:"host_root"`
	TPM               struct {
		Mode                *string `toml:"mode"`
		Device              *string `toml:"device"`
		EK                  *string `toml:"ek"`
		EndorsementAuthFile *string `toml:"endorsement_auth_file"`
		OwnerAuthFile       *string `toml:"owner_auth_file"`
		AutoRejoin          bool    `toml:"auto_rejoin"`
	} `toml:"tpm"`
	Helper struct {
		User   *string `toml:"user"`
		Socket *string `toml:"socket"`
	} `toml:"helper"`
	Log struct {
		Level  *string `toml:"level"`
		Format *string `toml:"format"`
	} `toml:"log"`
	Metrics struct {
		Listen *string `toml:"listen"`
	} `toml:"metrics"`
	Status struct {
		Socket *string `toml:"socket"`
	} `toml:"status"`
	Hardware struct {
		Placeholders []string `toml:"placeholders"`
	} `toml:"hardware"`

	positions positions
}

// parse reads TOML whose keys are all known.
func parse(document []byte) (*file, error) {
	f := &file{}
	found, unknownKey := walk(document)
	err := toml.NewDecoder(bytes.NewReader(document)).DisallowUnknownFields().Decode(f)
	var strict *toml.StrictMissingError
	var broken *toml.DecodeError
	switch {
	// A document that is no TOML has no keys to speak of; where it is one, the first unknown key is the finding.
	case unknownKey != nil && (err == nil || errors.As(err, &strict) || !isSyntax(document)):
		return nil, unknownKey
	case errors.As(err, &broken):
		line, column := broken.Position()
		message := strings.TrimPrefix(broken.Error(), "toml: ")
		if key := strings.Join(broken.Key(), "."); key != "" && !strings.Contains(message, key) {
			message = key + ": " + message
		}
		return nil, fault.New(fault.Config, "correct this line", "%s: %s", position{line, column}, message)
	case err != nil:
		return nil, fault.New(fault.Config, "correct the file", "%w", err)
	}
	f.positions = found
	return f, nil
}

// isSyntax reports whether the document is no TOML at all.
func isSyntax(document []byte) bool {
	var any map[string]any
	return toml.Unmarshal(document, &any) != nil
}
