package main

import (
	"encoding/json"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/better-compute/bcd/controlplane/ekallow"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// setTPM starts a software TPM and puts its device into TPM: tpm start; or does to it what happens to TPMs: tpm remove, tpm
// return, tpm clear.
func setTPM(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	switch args[0] {
	case "start":
		w.tpm = tpmkeytest.Any(w.t)
		ts.Setenv("TPM", w.tpm.Device())
	case "remove":
		w.tpm.Remove()
	case "return":
		w.tpm.Return(w.t)
	case "clear":
		w.tpm.Clear(w.t)
	default:
		ts.Fatalf("tpm: unknown argument %q", args[0])
	}
}

// allowEK lists the endorsement key of a report of bcd tpm identify: allow file.
func allowEK(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	var report struct {
		Hash string `json:"ek_sha256"`
	}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &report))
	hash, err := ekallow.ParseHash(report.Hash)
	ts.Check(err)
	_, err = (&ekallow.Service{Store: w.cp.Store()}).Add(w.t.Context(), "operator", ekallow.AddRequest{
		TenantID: w.cp.Tenant, PoolID: w.cp.Pool, EKSHA256: hash, IdempotencyKey: report.Hash,
	})
	ts.Check(err)
}
