package pki

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"filippo.io/age"

	"github.com/better-compute/bcd/internal/fault"
)

// The files in a PKI directory.
const (
	PrivateFile     = "pki.age"
	PublicFile      = "pki-public.json"
	GatewayCertFile = "gateway.crt"
	GatewayKeyFile  = "gateway.key"
)

const (
	// defaultWorkFactor is log2 of scrypt's N: 64 MiB and about a sixth of a second. The secret is a deployment's, random
	// and long; the work slows down guesses where it is not.
	defaultWorkFactor = 16
	// maxWorkFactor bounds what a file may ask of us: 1 GiB. `age -p` writes 18.
	maxWorkFactor = 20
	// maxFile bounds what is read of either file, in bytes.
	maxFile = 1 << 20
	// bundleVersion is the version of the plaintext of pki.age that this program writes.
	bundleVersion = 1
)

// workFactor is changed by this package's tests alone, which would take minutes.
var workFactor = defaultWorkFactor

// bundleFile is the plaintext of pki.age: all that pki-public.json has, and the private keys as PKCS#8.
type bundleFile struct {
	Version int     `json:"version"`
	Public  *Public `json:"public"`
	Keys    struct {
		NodeCA         []byte `json:"nodeCa"`
		ServingCA      []byte `json:"servingCa"`
		InternalCA     []byte `json:"internalCa"`
		CommandCA      []byte `json:"commandCa"`
		JoinSigning    []byte `json:"joinSigning"`
		CommandSigning []byte `json:"commandSigning"`
		JoinEncryption []byte `json:"joinEncryption"`
	} `json:"keys"`
	// Secret is 32 random bytes.
	Secret []byte `json:"secret"`
}

// Init makes a bundle and writes it to dir, which it makes (0700) where it is missing. secret encrypts the private
// keys. It never writes over a file: where one is there it fails with [fault.AlreadyExists], except that it completes
// an Init with the same domain and secret that a crash cut short.
func Init(dir, domain, secret string, now time.Time) (*Bundle, error) {
	if err := checkSecret(secret); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.New(fault.Unwritable, "", "cannot make the PKI directory: %w", err)
	}
	if b, err := resume(dir, domain, secret); b != nil || err != nil {
		return b, err
	}
	b, err := New(domain, now)
	if err != nil {
		return nil, err
	}
	sealed, err := b.encrypt(secret)
	if err != nil {
		return nil, err
	}
	// The private file is the commit point: the public one can be made again from it.
	if err := writeNew(dir, PrivateFile, 0o600, sealed); err != nil {
		return nil, err
	}
	return b, b.writePublic(dir)
}

// resume returns the bundle of a directory whose public file was never written, nil where the directory has no bundle
// at all, and else [fault.AlreadyExists].
func resume(dir, domain, secret string) (*Bundle, error) {
	private, public := exists(filepath.Join(dir, PrivateFile)), exists(filepath.Join(dir, PublicFile))
	if !private && !public {
		return nil, nil
	}
	if private && !public {
		if b, err := Load(dir, secret); err == nil && b.public.trustDomain == domain {
			return b, b.writePublic(dir)
		}
	}
	name := PrivateFile
	if public {
		name = PublicFile
	}
	return nil, alreadyExists(filepath.Join(dir, name))
}

func (b *Bundle) writePublic(dir string) error {
	data, err := json.MarshalIndent(&b.public, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode %s: %w", PublicFile, err)
	}
	return writeNew(dir, PublicFile, 0o644, append(data, '\n'))
}

// Load reads the bundle of dir. A wrong secret, a damaged file and a newer version are told apart. Where the public file
// is there, it must be the bundle's: machines are configured with its pins, and with others none could join.
func Load(dir, secret string) (*Bundle, error) {
	if err := checkSecret(secret); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, PrivateFile)
	sealed, err := readFile(path)
	if err != nil {
		return nil, err
	}
	plain, err := decrypt(sealed, secret)
	if err != nil {
		return nil, withPath(path, err)
	}
	b, err := parseBundle(plain)
	if err != nil {
		return nil, withPath(path, err)
	}
	if err := b.checkPublic(dir); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *Bundle) checkPublic(dir string) error {
	if !exists(filepath.Join(dir, PublicFile)) {
		return nil // an Init that a crash cut short
	}
	p, err := LoadPublic(dir)
	if err != nil {
		return err
	}
	if p.trustDomain != b.public.trustDomain || p.Pins() != b.public.Pins() {
		return fault.New(fault.Config, fmt.Sprintf("move %s away, and pki init with the same trust domain and secret writes the right one", PublicFile),
			"%q is not of the PKI in %s beside it", filepath.Join(dir, PublicFile), PrivateFile)
	}
	return nil
}

// LoadPublic reads the public side of the bundle of dir. It needs no secret.
func LoadPublic(dir string) (*Public, error) {
	path := filepath.Join(dir, PublicFile)
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	p := new(Public)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, withPath(path, err)
	}
	return p, nil
}

// IssueGatewayFiles issues a gateway certificate for names and writes gateway.crt and gateway.key to dir. Neither may
// be there.
func (b *Bundle) IssueGatewayFiles(dir string, names []string, now time.Time) (*Credential, error) {
	for _, name := range []string{GatewayCertFile, GatewayKeyFile} {
		if path := filepath.Join(dir, name); exists(path) {
			return nil, alreadyExists(path)
		}
	}
	c, err := b.IssueGateway(names, now)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.Key)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the gateway's key: %w", err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	chain := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Leaf.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Issuer.Raw})...)
	if err := writeNew(dir, GatewayKeyFile, 0o600, key); err != nil {
		return nil, err
	}
	if err := writeNew(dir, GatewayCertFile, 0o644, chain); err != nil {
		// A key without its certificate would only be in the way of the next try.
		return nil, errors.Join(err, os.Remove(filepath.Join(dir, GatewayKeyFile)))
	}
	return c, nil
}

func (b *Bundle) encrypt(secret string) ([]byte, error) {
	plain, err := b.marshal()
	if err != nil {
		return nil, fmt.Errorf("cannot encode the private keys: %w", err)
	}
	recipient, err := age.NewScryptRecipient(secret)
	if err != nil {
		return nil, fmt.Errorf("cannot encrypt the private keys: %w", err)
	}
	recipient.SetWorkFactor(workFactor)
	var out bytes.Buffer
	w, err := age.Encrypt(&out, recipient)
	if err != nil {
		return nil, fmt.Errorf("cannot encrypt the private keys: %w", err)
	}
	if _, err := w.Write(plain); err != nil {
		return nil, fmt.Errorf("cannot encrypt the private keys: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("cannot encrypt the private keys: %w", err)
	}
	return out.Bytes(), nil
}

func (b *Bundle) marshal() ([]byte, error) {
	f := bundleFile{Version: bundleVersion, Public: &b.public, Secret: b.secret}
	for _, k := range []struct {
		key any
		to  *[]byte
	}{
		{b.nodeCA, &f.Keys.NodeCA},
		{b.servingCA, &f.Keys.ServingCA},
		{b.internalCA, &f.Keys.InternalCA},
		{b.commandCA, &f.Keys.CommandCA},
		{b.joinSigning, &f.Keys.JoinSigning},
		{b.commandSigning, &f.Keys.CommandSigning},
		{b.joinEncryption, &f.Keys.JoinEncryption},
	} {
		var err error
		if *k.to, err = x509.MarshalPKCS8PrivateKey(k.key); err != nil {
			return nil, err
		}
	}
	return json.Marshal(f)
}

func decrypt(sealed []byte, secret string) ([]byte, error) {
	identity, err := age.NewScryptIdentity(secret)
	if err != nil {
		return nil, err
	}
	identity.SetMaxWorkFactor(maxWorkFactor)
	r, err := age.Decrypt(bytes.NewReader(sealed), identity)
	var wrong *age.NoIdentityMatchError
	if errors.As(err, &wrong) {
		return nil, fault.New(fault.Config, "set BETTER_COMPUTE_SECRET to the secret that pki init ran with", "the secret is wrong")
	}
	if err != nil {
		return nil, damaged(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		return nil, damaged(err)
	}
	return plain, nil
}

func parseBundle(plain []byte) (*Bundle, error) {
	var f bundleFile
	if err := unmarshalVersioned(plain, bundleVersion, &f); err != nil {
		return nil, err
	}
	if f.Public == nil || len(f.Secret) != secretSize {
		return nil, damaged(errors.New("a part is missing"))
	}
	b := &Bundle{public: *f.Public, secret: f.Secret}
	for _, k := range []struct {
		name string
		der  []byte
		cert *x509.Certificate
		to   **ecdsa.PrivateKey
	}{
		{"node CA", f.Keys.NodeCA, b.public.nodeCA, &b.nodeCA},
		{"serving CA", f.Keys.ServingCA, b.public.servingCA, &b.servingCA},
		{"internal CA", f.Keys.InternalCA, b.public.internalCA, &b.internalCA},
		{"command CA", f.Keys.CommandCA, b.public.commandCA, &b.commandCA},
		{"join-signing key", f.Keys.JoinSigning, b.public.joinSigning, &b.joinSigning},
		{"command-signing key", f.Keys.CommandSigning, b.public.commandSigning, &b.commandSigning},
	} {
		key, err := parseECDSA(k.der)
		if err != nil {
			return nil, damaged(fmt.Errorf("%s: %w", k.name, err))
		}
		if !key.PublicKey.Equal(k.cert.PublicKey) {
			return nil, damaged(fmt.Errorf("%s: certificate is another key's", k.name))
		}
		*k.to = key
	}
	encryption, err := parseECDSA(f.Keys.JoinEncryption)
	if err != nil {
		return nil, damaged(fmt.Errorf("join-encryption key: %w", err))
	}
	if b.joinEncryption, err = encryption.ECDH(); err != nil {
		return nil, damaged(fmt.Errorf("join-encryption key: %w", err))
	}
	if b.joinEncryption.Curve() != ecdh.P256() || !b.joinEncryption.PublicKey().Equal(b.public.joinEncryption) {
		return nil, damaged(errors.New("join-encryption key: JWK is another key's"))
	}
	return b, nil
}

func parseECDSA(der []byte) (*ecdsa.PrivateKey, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key is %T, not ECDSA", key)
	}
	return ec, nil
}

func checkSecret(secret string) error {
	if secret == "" {
		return fault.New(fault.Config, "set BETTER_COMPUTE_SECRET", "no secret for the PKI's private keys")
	}
	return nil
}

func damaged(err error) error {
	return fault.New(fault.Config, "restore the file from a backup", "file is damaged: %w", err)
}

// withPath names the file in front of an error and keeps its code and hint.
func withPath(path string, err error) error {
	code := fault.CodeOf(err)
	if code == fault.Failed {
		code = fault.Config
	}
	return fault.New(code, "", "cannot read %q: %w", path, err)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.Config, `run "better-compute pki init", or name its directory with --dir`, "cannot read the PKI: %w", err)
	}
	if err != nil {
		return nil, fault.New(fault.Config, "", "cannot read the PKI: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fault.New(fault.Config, "", "cannot read the PKI: %w", err)
	}
	if len(data) > maxFile {
		return nil, fault.New(fault.Config, "", "cannot read %q: larger than %d bytes", path, maxFile)
	}
	return data, nil
}
