package httpapi_test

import (
	"time"

	"github.com/better-compute/bcd/controlplane/apikeys"
	"github.com/better-compute/bcd/controlplane/approvals"
	"github.com/better-compute/bcd/controlplane/ekallow"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/idempotency"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tenancy"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/fault"
)

// What the types do not say of the API. Numbers are the constants that the server decides by, and
// TestLimitsOfTheDocumentAreTheServers holds the server to each.

// object is a JSON object of the document.
type object = map[string]any

// summaries say what each method does.
var summaries = map[string]string{
	"tenants.create":       "Make a tenant. For API keys of the root tenant.",
	"tenants.list":         "List the tenants that the API key can act for or make keys for.",
	"sites.create":         "Make a site.",
	"sites.update":         "Change a site.",
	"sites.list":           "List a tenant's sites.",
	"pools.create":         "Make a pool at a site.",
	"pools.update":         "Change a pool.",
	"pools.archive":        "Archive a pool: it admits no machine any more. Archiving twice is no error.",
	"pools.list":           "List a tenant's pools.",
	"apiKeys.create":       "Make an API key. The bearer form is shown once.",
	"apiKeys.list":         "List a tenant's API keys, never the keys themselves.",
	"apiKeys.revoke":       "End an API key at once. Revoking twice is no error.",
	"siteTokens.create":    "Make a token for the agents of a site. It is shown once.",
	"siteTokens.list":      "List a site's tokens, never their secrets.",
	"siteTokens.revoke":    "End a site's token at once. Revoking twice is no error.",
	"joinTokens.create":    "Make a join token for machines of a pool. It is shown once.",
	"joinTokens.list":      "List a pool's join tokens, never their secrets.",
	"joinTokens.revoke":    "End a join token at once. Revoking twice is no error.",
	"joinRequests.list":    "List the machines that wait for a decision in a pool: the pool's, and those of its site that no pool claimed.",
	"joinRequests.approve": "Let the machine of a join request join the pool, once. Approving twice returns the approval.",
	"joinRequests.reject":  "Refuse the machine of a join request for good; an approval that was not used is withdrawn.",
	"ekAllow.add":          "Let the machine whose TPM has an endorsement key join a pool without a token.",
	"ekAllow.list":         "List the endorsement keys whose machines may join a pool.",
	"ekAllow.remove":       "Take an endorsement key off a pool's list; a node that joined by it stays. Removing twice is no error.",
	"nodes.list":           "List a tenant's nodes, or a pool's.",
	"nodes.get":            "Show one node, retired or not.",
	"nodes.adopt":          "Adopt a node whose acceptance has not passed. Adopting twice is no error.",
	"nodes.cordon":         "Set a node aside: it stays connected and gets no new work. Cordoning twice is no error.",
	"nodes.uncordon":       "Let a node take work again. Uncordoning twice is no error.",
	"nodes.revokeIdentity": "Revoke every certificate of a node and end its session, until the machine joins again.",
	"nodes.delete":         "Delete a node for good: its certificates are revoked, its session ends and its machine can join as a new node.",
	"events.list":          "List a tenant's events, oldest first.",
}

// codes are those that a failed call can answer.
var codes = []fault.Code{
	fault.InvalidArgument, fault.Unauthenticated, fault.AccessDenied, fault.NotFound, fault.Conflict, fault.InvalidState,
	fault.AlreadyExists, fault.TooLarge, fault.RateLimited, fault.Unreachable, fault.Busy, fault.NoSpace, fault.InvalidConfig,
	fault.Failed,
}

// ids are the fields that hold an id, by their names.
var ids = map[string]store.Prefix{
	"tenantId": store.PrefixTenant, "siteId": store.PrefixSite, "poolId": store.PrefixPool, "nodeId": store.PrefixNode,
	"tokenId": store.PrefixToken, "requestId": store.PrefixJoinRequest, "keyId": store.PrefixKey,
	"decidedBy": store.PrefixKey, "vouchedBy": store.PrefixNode, "entryId": store.PrefixEKAllow,
}

// facts are what a field holds beside its type, by {type}.{field}.
var facts = map[string]object{
	"JoinToken.id": idOf(store.PrefixToken), "SiteToken.id": idOf(store.PrefixToken), "APIKey.id": idOf(store.PrefixKey),
	"JoinRequest.id": idOf(store.PrefixJoinRequest), "Node.id": idOf(store.PrefixNode),
	"Pool.id": idOf(store.PrefixPool), "Site.id": idOf(store.PrefixSite), "Tenant.id": idOf(store.PrefixTenant),

	"EKAllow.id": idOf(store.PrefixEKAllow), "ListEKAllow.cursor": idOf(store.PrefixEKAllow),
	"AddEKAllow.ekSha256": {"pattern": `^[0-9a-fA-F]{64}$`},
	"AddEKAllow.note":     atMost(ekallow.MaxNote), "EKAllow.ekSha256": digest, "JoinRequest.ekSha256": digest, "Node.ekSha256": digest,

	"ListTenants.cursor": idOf(store.PrefixTenant), "ListSites.cursor": idOf(store.PrefixSite), "ListPools.cursor": idOf(store.PrefixPool),
	"ListAPIKeys.cursor": idOf(store.PrefixKey), "ListSiteTokens.cursor": idOf(store.PrefixToken),
	"ListJoinTokens.cursor": idOf(store.PrefixToken), "ListJoinRequests.cursor": idOf(store.PrefixJoinRequest),
	"ListNodes.cursor": idOf(store.PrefixNode), "ListEvents.cursor": {"pattern": `^[0-9]+$`},

	"CreateJoinToken.ttlSeconds":    between(tokens.MinTTL/time.Second, tokens.MaxTTL/time.Second),
	"CreateJoinToken.maxUses":       with(between(1, tokens.MaxUses), "default", 1),
	"CreateJoinToken.hosted":        oneOf(tokens.HostedKubernetes),
	"CreateSiteToken.ttlSeconds":    between(tokens.MinTTL/time.Second, tokens.MaxTTL/time.Second),
	"CreateSiteToken.maxUses":       with(between(1, tokens.MaxSiteUses), "default", 1),
	"CreateAPIKey.ttlSeconds":       between(apikeys.MinTTL/time.Second, apikeys.MaxTTL/time.Second),
	"CreateAPIKey.actions":          {"minItems": 1, "maxItems": apikeys.MaxActions, "uniqueItems": true},
	"ApproveJoinRequest.ttlSeconds": with(between(approvals.MinTTL/time.Second, approvals.MaxTTL/time.Second), "default", approvals.DefaultTTL/time.Second),
	"ApproveJoinRequest.reason":     atMost(approvals.MaxReason),
	"RejectJoinRequest.reason":      atMost(approvals.MaxReason),
	"ApproveJoinRequest.csrSha256":  {"pattern": `^[0-9a-fA-F]{64}$`},
	"CreatePool.agent":              with(oneOf(store.AgentBCD, store.AgentNone), "default", store.AgentBCD),
	"UpdatePool.agent":              oneOf(store.AgentBCD, store.AgentNone),
	"ListEvents.since":              {"format": "date-time"},
	"ListNodes.state":               oneOf(store.NodeAdopting, store.NodeAdopted, store.NodeRetired),
	"ListJoinRequests.state":        with(oneOf(append(joinRequestStates(), approvals.StateAll)...), "default", store.JoinRequestPending),

	"JoinToken.role":          oneOf(store.TokenNode),
	"SiteToken.role":          oneOf(store.TokenSite),
	"ListedJoinToken.state":   oneOf("live", "revoked", "expired", "used-up"),
	"ListedSiteToken.state":   oneOf("live", "revoked", "expired", "used-up"),
	"APIKey.state":            oneOf("active", "revoked", "expired"),
	"CreatedJoinToken.token":  {"pattern": `^bcjt_jt_[0-9a-z]{26}\.[A-Za-z0-9_-]{43}$`},
	"CreatedSiteToken.token":  {"pattern": `^bcjt_jt_[0-9a-z]{26}\.[A-Za-z0-9_-]{43}$`},
	"CreatedAPIKey.key":       {"pattern": `^bcak_[A-Za-z0-9_-]{43}$`},
	"Pool.agent":              oneOf(store.AgentBCD, store.AgentNone),
	"Node.state":              oneOf(store.NodeAdopting, store.NodeAdopted, store.NodeRetired),
	"Node.role":               oneOf(store.RoleNode, store.RoleSite, store.RoleRamdisk),
	"Node.trust":              oneOf(store.TrustPlatform, store.TrustTenantOwned, store.TrustTenantControlled),
	"Node.hardwareKey":        hexDigits,
	"NodeCertificate.serial":  hexDigits,
	"JoinRequest.state":       oneOf(joinRequestStates()...),
	"JoinRequest.role":        oneOf(store.RoleNode, store.RoleSite, store.RoleRamdisk),
	"JoinRequest.hardwareKey": hexDigits,
	"JoinRequest.csrSha256":   digest,
	"Problem.code":            oneOf(codes...),
}

// factsOfNames are facts of a field wherever a request has it.
var factsOfNames = map[string]object{
	"limit":          with(between(1, httpapi.MaxLimit), "default", httpapi.DefaultLimit),
	"idempotencyKey": with(atMost(idempotency.MaxKey), "minLength", 1),
	"name":           with(atMost(tenancy.MaxName), "minLength", 1),
}

// nullable are the lists that an answer can leave null.
var nullable = map[string]bool{"PolicyInUse.joinAttestors": true}

var digest = object{"pattern": `^[0-9a-f]{64}$`}

var hexDigits = object{"pattern": `^[0-9a-f]+$`}

func idOf(p store.Prefix) object {
	return object{"pattern": `^` + string(p) + `_[0-7][0-9a-hjkmnp-tv-z]{25}$`}
}

func between[N, M ~int | ~int64](least N, most M) object {
	return object{"minimum": int64(least), "maximum": int64(most)}
}

// atMost is a text of so many bytes. The document counts characters: it lets nothing through that is longer, and some that
// the server refuses.
func atMost(bytes int) object { return object{"maxLength": bytes} }

func oneOf[T ~string](values ...T) object {
	var all []any
	for _, v := range values {
		all = append(all, string(v))
	}
	return object{"enum": all}
}

func joinRequestStates() (all []string) {
	for _, s := range store.JoinRequestStates {
		all = append(all, string(s))
	}
	return all
}
