package tokens_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
)

// A module gets the token as a value that no encoder writes: whatever it puts into a command, the command's body holds no
// token. Only who calls Bytes gets the text.
//
// Req: JT-064
func TestATokenOfAModuleCannotGetIntoACommand(t *testing.T) {
	w := newWorld(t)
	for _, r := range []tokens.IssueRequest{
		{Role: store.TokenProvisioned, PoolID: pool, TTL: time.Hour, NodeID: "node_1", IssuedBy: "userdata.render"},
		{Role: store.TokenDiscovery, PoolID: pool, TTL: time.Hour, MAC: "3c:ec:ef:00:00:01", IssuedBy: "boot"},
	} {
		made, token, err := w.Issue(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for name, arguments := range map[string]any{
			"as a field": struct{ Token any }{token},
			"by pointer": map[string]any{"userData": []any{&token}},
			"by its id":  map[string]string{"tokenId": made.ID},
		} {
			text, err := json.Marshal(arguments)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			body, err := proto.Marshal(&daemonv1.CommandBody{CommandId: "cmd_1", Kind: "deploy.write", Arguments: text})
			if err != nil {
				t.Fatal(err)
			}
			secret := token.Bytes()[bytes.IndexByte(token.Bytes(), '.')+1:]
			if bytes.Contains(body, []byte("bcjt_")) || bytes.Contains(body, secret) {
				t.Errorf("%s token %s: the command's body holds it: %q", r.Role, name, body)
			}
		}
	}
}
