package httpapi

import (
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/better-compute/bcd/internal/fault"
)

// Problem is the body of a failed call.
type Problem struct {
	Code    fault.Code `json:"code"`
	Message string     `json:"message"`
	Hint    string     `json:"hint,omitempty"`
}

// statusOf returns the HTTP status of a code. The code is the contract; the status is for proxies and logs.
func statusOf(code fault.Code) int {
	switch code {
	case fault.InvalidArgument:
		return http.StatusBadRequest
	case fault.Unauthenticated:
		return http.StatusUnauthorized
	case fault.AccessDenied:
		return http.StatusForbidden
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Conflict, fault.InvalidState, fault.AlreadyExists:
		return http.StatusConflict
	case fault.TooLarge:
		return http.StatusRequestEntityTooLarge
	case fault.RateLimited:
		return http.StatusTooManyRequests
	case fault.Unreachable, fault.Busy, fault.NoSpace:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// problemOf returns what the caller may read of err. An error without a code of the API is the server's own: its text can
// name files and queries, so it goes to the log and the caller reads only that it happened.
func problemOf(err error) (Problem, int) {
	code := fault.CodeOf(err)
	status := statusOf(code)
	if status == http.StatusInternalServerError && code != fault.InvalidConfig {
		return Problem{Code: fault.Failed, Message: "the server failed; its log has the cause"}, status
	}
	return Problem{Code: code, Message: err.Error(), Hint: fault.HintOf(err)}, status
}

// refuse answers with err.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, err error) {
	problem, status := problemOf(err)
	if status >= http.StatusInternalServerError {
		a.log.ErrorContext(r.Context(), "answer failed", "path", r.URL.Path, "error", err)
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="better-compute"`)
	}
	a.answer(w, r, status, problem)
}

// answer writes a JSON body.
func (a *API) answer(w http.ResponseWriter, r *http.Request, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		a.log.ErrorContext(r.Context(), "encode answer failed", "path", r.URL.Path, "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(append(text, '\n')); err != nil {
		a.log.DebugContext(r.Context(), "write answer failed", slog.Any("error", err))
	}
}
