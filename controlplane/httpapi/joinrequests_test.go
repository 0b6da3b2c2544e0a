package httpapi_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/fault"
)

// csrOne is the digest of the CSR of the fixture's join requests.
var csrOne = sha256.Sum256([]byte("CSR A"))

// addRequest records a pending join request of the site as the discovery attestor does, and returns its id.
func (f *fixture) addRequest(change func(*store.JoinRequest)) string {
	f.t.Helper()
	var id string
	f.write(func(tx *store.Tx) error {
		id = tx.NewID(store.PrefixJoinRequest)
		r := store.JoinRequest{
			ID: id, TenantID: f.tenant, SiteID: f.site, Attestor: "discovery", Role: store.RoleRamdisk, MachineKey: id,
			Claims: hwclaims.Claims{Vendor: "Dell Inc.", ProductSerial: "7XQ4T23", MACs: []string{"3c:ec:ef:00:00:01"}},
			MAC:    "3c:ec:ef:00:00:01", IP: "192.0.2.7", CSRSHA256: csrOne, ExpiresAt: tx.Now().Add(24 * time.Hour),
		}
		if change != nil {
			change(&r)
		}
		return tx.InsertJoinRequest(r)
	})
	return id
}

// decide is a request to decide a join request.
func (f *fixture) decide(id string) map[string]any {
	return map[string]any{"tenantId": f.tenant, "poolId": f.pool, "requestId": id}
}

// A request of a machine that proved its TPM shows the endorsement key, and whether anything vouches for it.
func TestWhatAJoinRequestShowsOfATPM(t *testing.T) {
	f := newFixture(t)
	ek := sha256.Sum256([]byte("endorsement key"))
	for _, unverified := range []bool{true, false} {
		id := f.addRequest(func(r *store.JoinRequest) { r.Attestor, r.EKSHA256, r.EKUnverified = "tpm", ek[:], unverified })
		shown := f.call("joinRequests.reject", f.decide(id)).object(t)
		if shown["ekSha256"] != hex.EncodeToString(ek[:]) || shown["ekUnverified"] != unverified {
			t.Errorf("request %v", shown)
		}
	}
}

// Req: AP-034 AP-041 AP-043
func TestWhatAJoinRequestShows(t *testing.T) {
	f := newFixture(t)
	bare := f.addRequest(func(r *store.JoinRequest) {
		r.MAC, r.IP, r.Claims = "", "", hwclaims.Claims{}
		r.ClaimedEpoch = 7 // the machine's word alone
	})
	vouched := f.addRequest(func(r *store.JoinRequest) {
		r.PoolID, r.HardwareKey, r.WorkflowID = f.pool, []byte{0xb8, 0x51}, "wf_1"
		r.VouchedBy, r.ClaimedEpoch = "node_01k5w0000000000000000000s1", 7
	})
	list := map[string]any{"tenantId": f.tenant, "poolId": f.pool}
	items := f.call("joinRequests.list", list).object(t)["items"].([]any)
	want := []any{
		map[string]any{
			"id": bare, "state": "pending", "siteId": f.site, "poolId": nil, "attestor": "discovery", "role": "ramdisk",
			"claims": map[string]any{}, "hardwareKey": nil, "mac": nil, "ip": nil, "workflowId": nil, "vouchedBy": nil,
			"bootLeaseEpoch": nil, "csrSha256": hex.EncodeToString(csrOne[:]), "createdAt": "2026-11-29T11:06:11Z",
			"expiresAt": "2026-11-30T11:06:11Z", "decidedAt": nil, "decidedBy": nil, "reason": nil, "consumedAt": nil,
		},
		map[string]any{
			"id": vouched, "state": "pending", "siteId": f.site, "poolId": f.pool, "attestor": "discovery", "role": "ramdisk",
			"claims":      map[string]any{"vendor": "Dell Inc.", "productSerial": "7XQ4T23", "macs": []any{"3c:ec:ef:00:00:01"}},
			"hardwareKey": "b851", "mac": "3c:ec:ef:00:00:01", "ip": "192.0.2.7", "workflowId": "wf_1",
			"vouchedBy": "node_01k5w0000000000000000000s1", "bootLeaseEpoch": 7.0,
			"csrSha256": hex.EncodeToString(csrOne[:]), "createdAt": "2026-11-29T11:06:11Z",
			"expiresAt": "2026-11-30T11:06:11Z", "decidedAt": nil, "decidedBy": nil, "reason": nil, "consumedAt": nil,
		},
	}
	if diff := cmp.Diff(want, items); diff != "" {
		t.Error(diff)
	}

	f.sleep(time.Minute)
	in := with(with(f.decide(vouched), "ttlSeconds", 900), "reason", "rack B7 intake, ticket 4411")
	approved := f.call("joinRequests.approve", in).object(t)
	decided := want[1].(map[string]any)
	for key, value := range map[string]any{
		"state": "approved", "expiresAt": "2026-11-29T11:22:11Z", "decidedAt": "2026-11-29T11:07:11Z", "decidedBy": f.keyID,
		"reason": "rack B7 intake, ticket 4411",
	} {
		decided[key] = value
	}
	if diff := cmp.Diff(decided, approved); diff != "" {
		t.Error(diff)
	}
	f.write(func(tx *store.Tx) error { return tx.ConsumeJoinRequest(vouched) })
	items = f.call("joinRequests.list", with(list, "state", "consumed")).object(t)["items"].([]any)
	decided["state"], decided["consumedAt"] = "consumed", "2026-11-29T11:07:11Z"
	if diff := cmp.Diff([]any{decided}, items); diff != "" {
		t.Error(diff)
	}
}

// Req: AP-024 AP-025 AP-026
func TestListsOfJoinRequests(t *testing.T) {
	f := newFixture(t)
	add := func(pool string) string {
		f.sleep(time.Second)
		return f.addRequest(func(r *store.JoinRequest) { r.PoolID = pool })
	}
	free, mine, others := add(""), add(f.pool), add(f.spare)
	done, rejected := add(f.pool), add("")
	f.call("joinRequests.approve", f.decide(done)).object(t)
	f.call("joinRequests.reject", f.decide(rejected)).object(t)

	ids := func(change map[string]any) (ids []string) {
		in := map[string]any{"tenantId": f.tenant, "poolId": f.pool}
		for k, v := range change {
			in[k] = v
		}
		list := read[httpapi.List[httpapi.JoinRequest]](t, f.call("joinRequests.list", in))
		for _, r := range list.Items {
			ids = append(ids, r.ID)
		}
		return append(ids, list.NextCursor)
	}
	for _, test := range []struct {
		in   map[string]any
		want []string
	}{
		{nil, []string{free, mine, ""}},
		{map[string]any{"poolId": f.spare}, []string{free, others, ""}},
		{map[string]any{"state": "pending"}, []string{free, mine, ""}},
		{map[string]any{"state": "approved"}, []string{done, ""}},
		{map[string]any{"state": "rejected"}, []string{rejected, ""}},
		{map[string]any{"state": "all"}, []string{free, mine, done, rejected, ""}},
		{map[string]any{"state": "all", "limit": 2}, []string{free, mine, mine}},
		{map[string]any{"state": "all", "limit": 2, "cursor": mine}, []string{done, rejected, ""}},
		{map[string]any{"state": "consumed"}, []string{""}},
	} {
		if diff := cmp.Diff(test.want, ids(test.in)); diff != "" {
			t.Errorf("%v: %s", test.in, diff)
		}
	}
	f.sleep(25 * time.Hour)
	if diff := cmp.Diff([]string{""}, ids(nil)); diff != "" {
		t.Errorf("pending after a day: %s", diff)
	}
	if diff := cmp.Diff([]string{free, mine, done, ""}, ids(map[string]any{"state": "expired"})); diff != "" {
		t.Errorf("expired after a day: %s", diff)
	}
}

// Req: AP-018 AP-019 AP-028 AP-029 AP-030 AP-031 AP-035
func TestDecideJoinRequests(t *testing.T) {
	f := newFixture(t)
	id := f.addRequest(nil)
	first := f.call("joinRequests.approve", with(f.decide(id), "ttlSeconds", 60)).object(t)
	if first["poolId"] != f.pool || first["expiresAt"] != "2026-11-29T11:07:11Z" {
		t.Errorf("approved: %v", first)
	}
	f.sleep(time.Second)
	again := f.call("joinRequests.approve", with(with(f.decide(id), "ttlSeconds", 86400), "reason", "again")).object(t)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("approved twice: %s", diff)
	}
	// Claimed by the pool, it is no other pool's.
	f.refused(f.call("joinRequests.approve", with(f.decide(id), "poolId", f.spare)), fault.NotFound, id)
	f.refused(f.call("joinRequests.reject", with(f.decide(id), "poolId", f.spare)), fault.NotFound, id)

	f.sleep(time.Minute)
	f.refused(f.call("joinRequests.approve", f.decide(id)), fault.InvalidState, "is expired")
	f.refused(f.call("joinRequests.reject", f.decide(id)), fault.InvalidState, "is expired")

	rejected := f.addRequest(nil)
	for range 2 {
		if got := f.call("joinRequests.reject", with(f.decide(rejected), "reason", "unknown serial")).object(t); got["state"] != "rejected" || got["reason"] != "unknown serial" {
			t.Errorf("rejected: %v", got)
		}
	}
	f.refused(f.call("joinRequests.approve", f.decide(rejected)), fault.InvalidState, "is rejected")

	hour := f.call("joinRequests.approve", f.decide(f.addRequest(nil))).object(t)
	if hour["expiresAt"] != f.now().Add(time.Hour).Format(time.RFC3339) {
		t.Errorf("approved without ttlSeconds until %v", hour["expiresAt"])
	}
	f.write(func(tx *store.Tx) error {
		p, err := tx.Pool(f.spare)
		if err != nil {
			return err
		}
		p.ArchivedAt = tx.Now()
		return tx.UpdatePool(p)
	})
	f.refused(f.call("joinRequests.approve", with(f.decide(f.addRequest(nil)), "poolId", f.spare)), fault.InvalidState, "archived")
	if n := len(f.events(f.tenant, events.TypeJoinRequestApproved)); n != 2 {
		t.Errorf("%d approvals were told", n)
	}
	if n := len(f.events(f.tenant, events.TypeJoinRequestRejected)); n != 1 {
		t.Errorf("%d rejections were told", n)
	}
}

// Req: AP-033
func TestARejectionWithdrawsAnApproval(t *testing.T) {
	f := newFixture(t)
	id := f.addRequest(nil)
	f.call("joinRequests.approve", f.decide(id)).object(t)
	if got := f.call("joinRequests.reject", with(f.decide(id), "reason", "wrong rack")).object(t); got["state"] != "rejected" || got["reason"] != "wrong rack" {
		t.Errorf("withdrawn: %v", got)
	}
	f.refused(f.call("joinRequests.approve", f.decide(id)), fault.InvalidState, "is rejected")
}

// An approval can name the CSR that its maker saw.
func TestApprovalsArePinned(t *testing.T) {
	f := newFixture(t)
	id := f.addRequest(nil)
	other := sha256.Sum256([]byte("CSR B"))
	f.refused(f.call("joinRequests.approve", with(f.decide(id), "csrSha256", hex.EncodeToString(other[:]))), fault.Conflict, hex.EncodeToString(csrOne[:]))
	for _, bad := range []any{"", "b851", strings.Repeat("g", 64), hex.EncodeToString(csrOne[:]) + "00", 7, nil} {
		in := f.decide(id)
		in["csrSha256"] = bad
		f.refused(f.call("joinRequests.approve", in), fault.InvalidArgument, `"csrSha256"`)
	}
	if got := f.call("joinRequests.approve", with(f.decide(id), "csrSha256", hex.EncodeToString(csrOne[:]))).object(t); got["state"] != "approved" {
		t.Errorf("approved: %v", got)
	}
}

func TestBadRequestsAboutJoinRequests(t *testing.T) {
	f := newFixture(t)
	id := f.addRequest(nil)
	foreign := f.addRequest(func(r *store.JoinRequest) { r.TenantID, r.PoolID = f.other, f.foreign })
	good := f.decide(id)
	for _, method := range []string{"joinRequests.approve", "joinRequests.reject"} {
		for _, test := range []struct {
			in   map[string]any
			code fault.Code
			text string
		}{
			{with(good, "requestId", nil), fault.InvalidArgument, `"requestId" is required`},
			{with(good, "requestId", ""), fault.InvalidArgument, `"requestId"`},
			{with(good, "requestId", f.pool), fault.InvalidArgument, `"requestId"`},
			{with(good, "requestId", "bcjt_jt_x.c2VjcmV0"), fault.InvalidArgument, `"requestId"`},
			{with(good, "requestId", store.NewID(store.PrefixJoinRequest, start)), fault.NotFound, "does not exist"},
			{with(good, "requestId", foreign), fault.NotFound, "does not exist"},
			{with(with(good, "tenantId", f.other), "poolId", f.foreign), fault.NotFound, "no tenant"},
			{with(good, "poolId", f.foreign), fault.NotFound, "does not exist"},
			{with(good, "poolId", "default"), fault.InvalidArgument, `"poolId"`},
			{with(good, "reason", strings.Repeat("x", 1025)), fault.InvalidArgument, "reason"},
			{with(good, "reason", "a\nb"), fault.InvalidArgument, "reason"},
			{with(good, "reason", 7), fault.InvalidArgument, `"reason"`},
			{with(good, "Reason", "x"), fault.InvalidArgument, `unknown field "Reason"`},
			{with(good, "reason", strings.Repeat("x", 70_000)), fault.InvalidArgument, "larger than"},
		} {
			a := f.call(method, test.in)
			f.refused(a, test.code, test.text)
			if strings.Contains(a.body, "c2VjcmV0") {
				t.Errorf("%s repeats a pasted secret: %s", method, a.body)
			}
		}
	}
	for _, ttl := range []any{0, 59, 86401, -60, int64(1) << 62, "900", 60.5} {
		f.refused(f.call("joinRequests.approve", with(good, "ttlSeconds", ttl)), fault.InvalidArgument, `"ttlSeconds"`)
	}
	list := map[string]any{"tenantId": f.tenant, "poolId": f.pool}
	for key, values := range map[string][]any{
		"state": {"", "Pending", "open"}, "limit": {0, 201}, "cursor": {id + "x", f.pool}, "poolId": {"", "x"},
	} {
		for _, v := range values {
			f.refused(f.call("joinRequests.list", with(list, key, v)), fault.InvalidArgument, key)
		}
	}
	f.refused(f.call("joinRequests.list", with(list, "poolId", f.foreign)), fault.NotFound, "does not exist")
	if got := read[httpapi.List[httpapi.JoinRequest]](t, f.call("joinRequests.list", list)).Items; len(got) != 1 || got[0].ID != id {
		t.Errorf("left: %+v", got)
	}
}

// However decisions race, one wins and is told once.
func TestConcurrentDecisions(t *testing.T) {
	f := newFixture(t)
	for round := range 5 {
		id := f.addRequest(nil)
		before := len(f.events(f.tenant, events.TypeJoinRequestApproved)) + len(f.events(f.tenant, events.TypeJoinRequestRejected))
		var wg sync.WaitGroup
		bodies := make([]string, 8)
		for i := range bodies {
			wg.Go(func() {
				method := []string{"approve", "reject"}[i%2]
				body := fmt.Sprintf(`{"tenantId":%q,"poolId":%q,"requestId":%q}`, f.tenant, f.pool, id)
				request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/joinRequests/"+method, strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				request.Header.Set("Content-Type", "application/json")
				request.Header.Set("Authorization", "Bearer "+f.key)
				response, err := http.DefaultClient.Do(request)
				if err != nil {
					t.Error(err)
					return
				}
				defer response.Body.Close()
				var b bytes.Buffer
				_, _ = b.ReadFrom(response.Body)
				if bodies[i] = b.String(); response.StatusCode != http.StatusOK && !strings.Contains(bodies[i], "INVALID_STATE") {
					t.Errorf("status %d: %s", response.StatusCode, bodies[i])
				}
			})
		}
		wg.Wait()
		// A rejection always stands in the end: it withdraws an approval, and nothing follows it.
		items := read[httpapi.List[httpapi.JoinRequest]](t, f.call("joinRequests.list",
			map[string]any{"tenantId": f.tenant, "poolId": f.pool, "state": "rejected"})).Items
		if len(items) != round+1 {
			t.Errorf("%d requests are rejected: %q", len(items), bodies)
		}
		told := len(f.events(f.tenant, events.TypeJoinRequestApproved)) + len(f.events(f.tenant, events.TypeJoinRequestRejected)) - before
		if told != 1 && told != 2 {
			t.Errorf("%d decisions were told", told)
		}
	}
}
