package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/better-compute/bcd/controlplane/apikeys"
	"github.com/better-compute/bcd/controlplane/approvals"
	"github.com/better-compute/bcd/controlplane/ekallow"
	"github.com/better-compute/bcd/controlplane/nodes"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tenancy"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/fault"
)

// DefaultBasePath is the base path that a server has unless its operator chose another.
const DefaultBasePath = "/api/compute"

// Options are the parts that the API is made of.
type Options struct {
	// Store holds what the API shows. Required.
	Store store.Store
	// RootTenant is the id of the tenant that the platform itself is. Required.
	RootTenant string
	// Tokens makes and ends join tokens. Required.
	Tokens *tokens.Service
	// Authorizer decides what a caller may do. Nil is [KeyActions].
	Authorizer Authorizer
	// Connected says whether a node has a session now. Nil is a control plane without sessions.
	Connected func(nodeID string) bool
	// PKI is what the well-known document publishes. Nil is a control plane without JoinService keys.
	PKI *pki.Public
	// Gateway is what the well-known document says of the gateway. It may be nil.
	Gateway *Gateway
	// BasePath starts with a slash and does not end with one. Empty is [DefaultBasePath].
	BasePath string
	// Version is the program's version, which the well-known document names.
	Version string
	// Log gets the failures that callers may not read. Required.
	Log *slog.Logger
}

// API is the HTTP API. It is an [http.Handler], safe for concurrent use.
type API struct {
	store      store.Store
	rootTenant string
	tokens     *tokens.Service
	tenancy    *tenancy.Service
	keys       *apikeys.Service
	approvals  *approvals.Service
	nodes      *nodes.Service
	ekAllow    *ekallow.Service
	authorizer Authorizer
	connected  func(nodeID string) bool
	document   Document
	openAPI    json.RawMessage
	basePath   string
	log        *slog.Logger
}

// New returns the API.
func New(o Options) (*API, error) {
	if o.BasePath == "" {
		o.BasePath = DefaultBasePath
	}
	if !strings.HasPrefix(o.BasePath, "/") || strings.HasSuffix(o.BasePath, "/") || strings.ContainsAny(o.BasePath, "?#%") {
		return nil, fault.New(fault.Config, "write it as "+DefaultBasePath, "%q is not a base path", o.BasePath)
	}
	if o.Store == nil || o.RootTenant == "" || o.Tokens == nil || o.Log == nil {
		return nil, errors.New("cannot make the HTTP API: a part is missing")
	}
	if o.Authorizer == nil {
		o.Authorizer = KeyActions{}
	}
	if o.Connected == nil {
		o.Connected = func(string) bool { return false }
	}
	d, err := document(o)
	if err != nil {
		return nil, fmt.Errorf("cannot make the HTTP API: %w", err)
	}
	described, err := openAPI(o)
	if err != nil {
		return nil, fmt.Errorf("cannot make the HTTP API: %w", err)
	}
	return &API{
		rootTenant: o.RootTenant,
		tenancy:    &tenancy.Service{Store: o.Store, RootTenant: o.RootTenant},
		keys:       &apikeys.Service{Store: o.Store, RootTenant: o.RootTenant, Actions: Actions},
		store:      o.Store, tokens: o.Tokens, approvals: &approvals.Service{Store: o.Store}, nodes: &nodes.Service{Store: o.Store},
		ekAllow:    &ekallow.Service{Store: o.Store},
		authorizer: o.Authorizer, connected: o.Connected,
		document: d, openAPI: described, basePath: o.BasePath, log: o.Log,
	}, nil
}

// NewServer returns a server of the API for a listener, with limits that hold against slow and greedy clients. Errors
// of connections go to log.
func NewServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// ServeHTTP implements [http.Handler].
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	if r.TLS != nil {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}

	path := r.URL.Path
	name, inBase := strings.CutPrefix(path, a.basePath)
	method, known := methods[strings.TrimPrefix(strings.ReplaceAll(name, "/", "."), ".")]
	switch {
	case path == "/healthz":
		a.get(w, r, a.serveHealth)
	case inBase && name == wellKnownPath:
		a.get(w, r, a.serveDocument)
	case inBase && name == openAPIPath:
		a.get(w, r, a.serveOpenAPI)
	case inBase && known && strings.Count(name, "/") == 2:
		a.serveMethod(w, r, method)
	default:
		a.refuse(w, r, fault.New(fault.NotFound, "", "%q is not a method; methods are POST %s/{group}/{method}", path, a.basePath))
	}
}

// get serves a document that is read only.
func (a *API) get(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		a.refuseMethod(w, r, "GET, HEAD")
		return
	}
	serve(w, r)
}

func (a *API) refuseMethod(w http.ResponseWriter, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	a.answer(w, r, http.StatusMethodNotAllowed, Problem{
		Code: fault.InvalidArgument, Message: fmt.Sprintf("cannot %s this; it takes %s", r.Method, allow),
	})
}

// serveHealth says whether the server can answer: its database reads.
func (a *API) serveHealth(w http.ResponseWriter, r *http.Request) {
	if err := a.store.Read(r.Context(), func(*store.Tx) error { return nil }); err != nil {
		a.log.ErrorContext(r.Context(), "read database failed", "error", err)
		a.answer(w, r, http.StatusServiceUnavailable, map[string]string{"status": "unavailable"})
		return
	}
	a.answer(w, r, http.StatusOK, map[string]string{"status": "ok"})
}

// method is one method of the API.
type method struct {
	// do reads the request's body, authorizes the caller and does the work.
	do func(a *API, ctx context.Context, caller Caller, body []byte) (answer any, err error)
	// request and answer are the types that the OpenAPI document is made from.
	request, answer reflect.Type
}

// methods is the whole API, by {group}.{method}.
var methods = map[string]method{
	"tenants.create":       handle((*API).createTenant),
	"tenants.list":         handle((*API).listTenants),
	"sites.create":         handle((*API).createSite),
	"sites.update":         handle((*API).updateSite),
	"sites.list":           handle((*API).listSites),
	"pools.create":         handle((*API).createPool),
	"pools.update":         handle((*API).updatePool),
	"pools.archive":        handle((*API).archivePool),
	"pools.list":           handle((*API).listPools),
	"apiKeys.create":       handle((*API).createAPIKey),
	"apiKeys.list":         handle((*API).listAPIKeys),
	"apiKeys.revoke":       handle((*API).revokeAPIKey),
	"siteTokens.create":    handle((*API).createSiteToken),
	"siteTokens.list":      handle((*API).listSiteTokens),
	"siteTokens.revoke":    handle((*API).revokeSiteToken),
	"joinTokens.create":    handle((*API).createJoinToken),
	"joinTokens.list":      handle((*API).listJoinTokens),
	"joinTokens.revoke":    handle((*API).revokeJoinToken),
	"joinRequests.list":    handle((*API).listJoinRequests),
	"joinRequests.approve": handle((*API).approveJoinRequest),
	"joinRequests.reject":  handle((*API).rejectJoinRequest),
	"ekAllow.add":          handle((*API).addEKAllow),
	"ekAllow.list":         handle((*API).listEKAllow),
	"ekAllow.remove":       handle((*API).removeEKAllow),
	"nodes.list":           handle((*API).listNodes),
	"nodes.get":            handle((*API).getNode),
	"nodes.adopt":          handle((*API).adoptNode),
	"nodes.cordon":         handle((*API).cordonNode),
	"nodes.uncordon":       handle((*API).uncordonNode),
	"nodes.delete":         handle((*API).deleteNode),
	"nodes.revokeIdentity": handle((*API).revokeIdentity),
	"events.list":          handle((*API).listEvents),
}

// handle makes a method of a function that takes its request decoded.
func handle[In, Out any](do func(*API, context.Context, Caller, In) (Out, error)) method {
	return method{
		do: func(a *API, ctx context.Context, caller Caller, body []byte) (any, error) {
			var in In
			if err := decode(body, &in); err != nil {
				return nil, err
			}
			return do(a, ctx, caller, in)
		},
		request: reflect.TypeFor[In](), answer: reflect.TypeFor[Out](),
	}
}

func (a *API) serveMethod(w http.ResponseWriter, r *http.Request, m method) {
	if r.Method != http.MethodPost {
		a.refuseMethod(w, r, "POST")
		return
	}
	caller, err := a.authenticate(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	answer, err := m.do(a, r.Context(), caller, body)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	a.answer(w, r, http.StatusOK, answer)
}

// readBody reads a JSON body of at most [MaxBody] bytes.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	// A form that a browser can post to another site without asking it first is not JSON by its type: so this check
	// also keeps web pages from calling the API.
	kind, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := parameters["charset"]
	if err != nil || kind != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return nil, invalid("the Content-Type must be application/json")
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" {
		return nil, invalid("the Content-Encoding %q is not accepted", encoding)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, invalid("the request is larger than %d bytes", MaxBody)
	case err != nil:
		return nil, invalid("cannot read the request: %w", err)
	}
	return body, nil
}
