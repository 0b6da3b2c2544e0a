package controlplanetest

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	joinv1 "github.com/better-compute/bcd/api/join/v1"
)

// Call is a call whose answer can be lost.
type Call string

// The calls.
const (
	Join  Call = joinv1.JoinService_Join_FullMethodName
	Renew Call = joinv1.JoinService_Renew_FullMethodName
)

// faults are what the gateway's connection to JoinService suffers.
type faults struct {
	mu   sync.Mutex
	drop map[string]int
	lost map[string]int
}

// DropAnswer loses the answers of the next n calls of the kind that JoinService admits: it has committed them, and the
// daemon gets UNAVAILABLE.
func (cp *ControlPlane) DropAnswer(c Call, n int) {
	cp.faults.mu.Lock()
	defer cp.faults.mu.Unlock()
	if cp.faults.drop == nil {
		cp.faults.drop, cp.faults.lost = map[string]int{}, map[string]int{}
	}
	cp.faults.drop[string(c)] = n
}

// Dropped returns how many answers of the kind were lost.
func (cp *ControlPlane) Dropped(c Call) int {
	cp.faults.mu.Lock()
	defer cp.faults.mu.Unlock()
	return cp.faults.lost[string(c)]
}

func (f *faults) unary(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := call(ctx, method, req, resp, cc, opts...); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.drop[method] == 0 {
		return nil
	}
	f.drop[method]--
	f.lost[method]++
	return status.Error(codes.Unavailable, "answer lost by the test")
}
