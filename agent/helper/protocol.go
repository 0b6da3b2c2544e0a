package helper

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/tpmkey/attest"
)

// The calls. Their paths begin with the protocol's version.
const (
	pathSignTLS13      = "/v1/sign-tls13"
	pathSignPurpose    = "/v1/sign-purpose"
	pathSignCSR        = "/v1/sign-csr"
	pathNewNextKey     = "/v1/new-next-key"
	pathCertifyNextKey = "/v1/certify-next-key"
	pathAttestationKey = "/v1/attestation-key"
	pathFirmware       = "/v1/firmware-claims"
	pathConfig         = "/v1/config"
)

const (
	// MaxPayload is the largest payload of a purpose, in bytes. A join's request is the largest there is.
	MaxPayload = 64 << 10
	// maxMessage bounds the body of a request and of an answer, in bytes: the payload in base64, and the rest.
	maxMessage = 96 << 10
	// requestWithin is how long a peer may take to send a request.
	requestWithin = 5 * time.Second
	// callWithin is how long a call may take. A slow TPM needs tens of seconds to make a key.
	callWithin = 2 * time.Minute
)

// keyID names a key: SHA-256 of its SubjectPublicKeyInfo, in lower-case hex.
type keyID string

func idOf(public crypto.PublicKey) (keyID, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("cannot encode a public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return keyID(hex.EncodeToString(sum[:])), nil
}

// signRequest is the body of the three calls that sign.
type signRequest struct {
	Key keyID `json:"key"`
	// Message is what is hashed and signed: of TLS and of a certificate request.
	Message []byte `json:"message,omitempty"`
	// Purpose and Payload are those of [signing.Sign].
	Purpose signing.Purpose `json:"purpose,omitempty"`
	Payload []byte          `json:"payload,omitempty"`
}

// signAnswer is the answer of the calls that sign: ECDSA over SHA-256, ASN.1 DER.
type signAnswer struct {
	Signature []byte `json:"signature"`
}

type newKeyAnswer struct {
	// Record is what the node stores: package tpmkey's.
	Record []byte `json:"record"`
}

type certifyRequest struct {
	Key       keyID  `json:"key"`
	CSRSHA256 []byte `json:"csr_sha256"`
}

type certifyAnswer struct {
	Certification attest.Certification `json:"certification"`
}

type attestationKeyAnswer struct {
	Public []byte `json:"public"` // TPMT_PUBLIC
}

type firmwareAnswer struct {
	Report hwclaims.Report `json:"report"`
}

type configAnswer struct {
	Document string `json:"document"` // TOML
}

// nothing is the body of a call without arguments.
type nothing struct{}

// failure is an answer that says why there is none.
type failure struct {
	Code    fault.Code `json:"code"`
	Message string     `json:"message"`
	Hint    string     `json:"hint,omitempty"`
}

func writeFailure(w http.ResponseWriter, err error) {
	code, status := fault.CodeOf(err), http.StatusServiceUnavailable
	if !code.Temporary() {
		status = http.StatusBadRequest
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(failure{code, err.Error(), fault.HintOf(err)}) // a peer that is gone wants no answer
}

func readFailure(body io.Reader) error {
	var f failure
	if err := decode(body, &f); err != nil {
		return fmt.Errorf("cannot read the helper's answer: %w", err)
	}
	return fault.New(f.Code, f.Hint, "%s", f.Message)
}

// decode reads one JSON value of a bounded size and nothing after it. A member that this version does not know is refused: a
// call that is only half understood must not be answered.
func decode(body io.Reader, to any) error {
	text, err := io.ReadAll(io.LimitReader(body, maxMessage+1))
	if err != nil {
		return err
	}
	if len(text) > maxMessage {
		return fault.New(fault.TooLarge, "", "it has more than %d bytes", maxMessage)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	return nil
}
