package joinservice

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
)

// Challenge implements [joinv1.JoinServiceServer]. It is refused as a join is.
func (s *Service) Challenge(ctx context.Context, in *joinv1.ChallengeRequest) (*daemonv1.ChallengeResponse, error) {
	if s.keys == nil {
		return nil, errNoKeys
	}
	arrived := s.now()
	answer, err := s.challenge(in.GetRequest(), arrived)
	if err == nil {
		return answer, nil
	}
	req := &Request{body: &daemonv1.JoinRequestBody{Attestor: AttestorTPM}}
	if len(in.GetRequest().GetCsrSha256()) == sha256.Size {
		copy(req.csrSHA256[:], in.GetRequest().GetCsrSha256())
	}
	return nil, s.answer(ctx, arrived, err, errJoinRefused, func(r *refusal) { s.tellJoin(ctx, req, r) })
}

func (s *Service) challenge(r *daemonv1.ChallengeRequest, now time.Time) (*daemonv1.ChallengeResponse, error) {
	a, ok := s.attestors[AttestorTPM].(*TPM)
	if !ok {
		return nil, Refuse("join:attestor")
	}
	return a.answerChallenge(r, now)
}

const (
	// challengeLifetime is how long a machine may take to answer. A TPM takes seconds for the steps in between.
	challengeLifetime = 5 * time.Minute
	challengeKeyInfo  = "better-compute/join/tpm-challenge/v1"
	// saltSize is that of the random start of a state. Each state has a key of its own, derived with it, so that no number of
	// challenges repeats a nonce.
	saltSize = 32
	// maxState bounds a state, in bytes. Ours have under 600.
	maxState = 2048
)

// challenge is what the answer to it is judged by. It travels as the state, sealed: JoinService keeps nothing.
type challenge struct {
	EKSHA256, CSRSHA256, Secret [sha256.Size]byte
	// Statement names the attestation key.
	Statement string
	// Verified says that a certificate of the EK was under a configured root.
	Verified  bool
	ExpiresAt time.Time
}

func newChallenge(now time.Time) *challenge {
	c := &challenge{ExpiresAt: now.Add(challengeLifetime)}
	_, _ = rand.Read(c.Secret[:]) // never fails: crypto/rand
	return c
}

// challengeSeal seals challenges under a key that all replicas derive.
type challengeSeal struct{ key []byte }

func newChallengeSeal(keys *Keys) (*challengeSeal, error) {
	if keys == nil || keys.DeriveKey == nil {
		return nil, errors.New("there is no secret to seal challenges with")
	}
	key, err := keys.DeriveKey(challengeKeyInfo, sha256.Size)
	if err != nil {
		return nil, err
	}
	return &challengeSeal{key: key}, nil
}

// aead is the cipher of the state with the salt. Its nonce is zero: the key is for one state.
func (s *challengeSeal) aead(salt []byte) (cipher.AEAD, []byte, error) {
	key, err := hkdf.Key(sha256.New, s.key, salt, challengeKeyInfo, sha256.Size)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot derive a challenge's key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot seal a challenge: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot seal a challenge: %w", err)
	}
	return aead, make([]byte, aead.NonceSize()), nil
}

func (s *challengeSeal) seal(c *challenge) ([]byte, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a challenge: %w", err)
	}
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt) // never fails: crypto/rand
	aead, nonce, err := s.aead(salt)
	if err != nil {
		return nil, err
	}
	return aead.Seal(salt, nonce, text, nil), nil
}

func (s *challengeSeal) open(state []byte) (*challenge, error) {
	if len(state) < saltSize || len(state) > maxState {
		return nil, errors.New("a state has another size")
	}
	aead, nonce, err := s.aead(state[:saltSize])
	if err != nil {
		return nil, err
	}
	text, err := aead.Open(nil, nonce, state[saltSize:], nil)
	if err != nil {
		return nil, err
	}
	c := new(challenge)
	return c, json.Unmarshal(text, c)
}
