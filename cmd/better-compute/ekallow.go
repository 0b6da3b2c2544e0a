package main

import (
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/internal/fault"
)

func ekAllowCommand(env Env) *cobra.Command {
	return group("ek-allow", "Add, list and remove TPMs that join without a token",
		addEKAllowCommand(env), listEKAllowCommand(env), removeEKAllowCommand(env))
}

// maxReport bounds what "bcd tpm identify" may have printed, in bytes: a TPM's certificates take tens of KiB.
const maxReport = 256 << 10

func addEKAllowCommand(env Env) *cobra.Command {
	var (
		to           target
		hash, public string
		key          keyFlag
		format       output
		add          httpapi.AddEKAllow
	)
	c := &cobra.Command{
		Use:   "add [FILE]",
		Short: "Let the machine with a TPM join the pool without a token",
		Long: `Let the machine with a TPM join the pool without a token, by "bcd join --attestor tpm".

FILE is what "bcd tpm identify --output json" printed on that machine; - is standard input. Instead of it, --ek-sha256 takes
the endorsement key's hash as "bcd tpm identify" shows it, or --ek-public the key itself, in PEM.

Take the hash from the machine itself, over a way that you trust: whoever's hash this is joins the pool. At a site a TPM is
listed once.`,
		Example: `  better-compute ek-allow add identity.json --tenant $TENANT --pool $POOL --note 'rack B7 u12'
  ssh rack-b7-u12 sudo bcd tpm identify --output json | better-compute ek-allow add -`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := notEmpty(c, "ek-sha256", "ek-public", "note", "key"); err != nil {
				return err
			}
			given := 0
			for _, is := range []bool{len(args) > 0, hash != "", public != ""} {
				if is {
					given++
				}
			}
			if given != 1 {
				return usage(c, "name the TPM by one of FILE, --ek-sha256 and --ek-public")
			}
			var err error
			switch {
			case hash != "":
				add.EKSHA256 = &hash
			case public != "":
				err = readPublic(env, public, &add)
			default:
				err = readReport(env, args[0], &add)
			}
			if err != nil {
				return err
			}
			if add.IdempotencyKey, err = key.text(); err != nil {
				return err
			}
			api, err := to.connectPool(c, env)
			if err != nil {
				return err
			}
			add.TenantID, add.PoolID = to.tenant, to.pool
			var made httpapi.EKAllow
			if err := api.Call(c.Context(), "ekAllow.add", add, &made); err != nil {
				return err
			}
			return printDone(env, format, made.ID, "added, for the endorsement key "+made.EKSHA256, made)
		},
	}
	to.addPoolTo(c)
	c.Flags().StringVar(&hash, "ek-sha256", "", "SHA-256 of the endorsement key, 64 hex digits")
	c.Flags().StringVar(&public, "ek-public", "", "file with the endorsement key in PEM")
	c.Flags().StringVar(&add.Note, "note", "", "which machine it is, for people")
	key.addTo(c, "entry")
	format.addTo(c.Flags())
	return c
}

// readReport takes the endorsement key from what "bcd tpm identify --output json" printed. What else that says is not read.
func readReport(env Env, path string, to *httpapi.AddEKAllow) error {
	text, err := readInput(env, path)
	if err != nil {
		return fmt.Errorf("cannot read the TPM's identity: %w", err)
	}
	var report struct {
		EKSHA256 string `json:"ek_sha256"`
		EKSPKI   []byte `json:"ek_spki"`
	}
	if err := json.Unmarshal(text, &report); err != nil || len(report.EKSHA256) != 2*32 {
		return notAReport(path, err)
	}
	if _, err := hex.DecodeString(report.EKSHA256); err != nil {
		return notAReport(path, err)
	}
	to.EKSHA256 = &report.EKSHA256
	if len(report.EKSPKI) > 0 { // the server compares the two: a copy that lost a digit ends here
		key := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: report.EKSPKI}))
		to.EKPublic = &key
	}
	return nil
}

func notAReport(path string, err error) error {
	if err == nil {
		err = errors.New("it has no ek_sha256 of 64 hex digits")
	}
	return fault.New(fault.Usage, `pass what "bcd tpm identify --output json" prints on the machine`, "%q is not a TPM's identity: %w", path, err)
}

func readPublic(env Env, path string, to *httpapi.AddEKAllow) error {
	text, err := readInput(env, path)
	if err != nil {
		return fmt.Errorf("cannot read the endorsement key: %w", err)
	}
	key := string(text)
	to.EKPublic = &key
	return nil
}

// readInput reads a file, or standard input for "-".
func readInput(env Env, path string) (_ []byte, err error) {
	from := env.Stdin
	if path != "-" {
		f, err := os.Open(path) //nolint:gosec // the operator names it
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, maxReport+1))
	if err == nil && len(text) > maxReport {
		err = fmt.Errorf("%q has more than %d bytes", path, maxReport)
	}
	return text, err
}

func listEKAllowCommand(env Env) *cobra.Command {
	var (
		to     target
		format output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List the TPMs that may join the pool without a token",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := to.connectPool(c, env)
			if err != nil {
				return err
			}
			entries, err := every(c.Context(), api, "ekAllow.list", func(cursor string) any {
				return httpapi.ListEKAllow{TenantID: to.tenant, PoolID: to.pool, Limit: pageSize, Cursor: cursor}
			}, []httpapi.EKAllow{})
			if err != nil {
				return err
			}
			return printList(env, format, entries, []string{"ID", "EK SHA256", "ADDED", "NOTE"}, func(e httpapi.EKAllow) []string {
				return []string{e.ID, e.EKSHA256, at(e.CreatedAt), given(e.Note)}
			})
		},
	}
	to.addPoolTo(c)
	format.addTo(c.Flags())
	return c
}

func removeEKAllowCommand(env Env) *cobra.Command {
	var (
		to     target
		format output
	)
	c := &cobra.Command{
		Use:   "remove ENTRY",
		Short: "Take a TPM off the pool's list",
		Long: `Take a TPM off the pool's list. Removing twice is not an error.

A node that joined by it stays, and its TPM may join again as that node: "nodes delete" ends that.

ENTRY is the entry's id, ek_…, as "ek-allow list" shows it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkID(c, "list entry", "ek_", args[0]); err != nil {
				return err
			}
			api, err := to.connectPool(c, env)
			if err != nil {
				return err
			}
			var removed httpapi.EKAllow
			in := httpapi.RemoveEKAllow{TenantID: to.tenant, PoolID: to.pool, EntryID: args[0]}
			if err := api.Call(c.Context(), "ekAllow.remove", in, &removed); err != nil {
				return err
			}
			return printDone(env, format, removed.ID, "removed", removed)
		},
	}
	to.addPoolTo(c)
	format.addTo(c.Flags())
	return c
}
