package gateway

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/internal/fault"
)

// bound gives every call but a session an end, also while its request is still arriving: a caller that sends one byte
// an hour holds nothing for long.
func (g *Gateway) bound(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName == daemonv1.NodeGateway_Session_FullMethodName {
		return ctx, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.o.CallWithin)
	context.AfterFunc(ctx, cancel) // the stream cancels its context when the call ends
	return ctx, nil
}

// unary is around every method but Session.
func (g *Gateway) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := grpc.SetHeader(ctx, g.serverTime()); err != nil {
		return nil, err
	}
	if n := proto.Size(req.(proto.Message)); n > maxUnary {
		return nil, newStatus(codes.InvalidArgument, fault.TooLarge, "Request is larger than 64 KiB").Err()
	}
	source := sourceOf(ctx)
	if wait := g.refused.wait(source); wait > 0 {
		return nil, rateLimited(wait)
	}
	resp, err := handler(ctx, req)
	g.count(source, err)
	return resp, err
}

// stream is around Session and around methods that do not exist.
func (g *Gateway) stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := ss.SetHeader(g.serverTime()); err != nil {
		return err
	}
	source := sourceOf(ss.Context())
	if wait := g.refused.wait(source); wait > 0 {
		return rateLimited(wait)
	}
	err := handler(srv, ss)
	g.count(source, err)
	return err
}

// count charges a refused call to its source. What failed for another reason, or succeeded, is free: a rack of machines
// behind one address may join all at once.
func (g *Gateway) count(s source, err error) {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.Unimplemented:
		g.refused.charge(s)
	default:
	}
}

func (g *Gateway) serverTime() metadata.MD {
	return metadata.Pairs(ServerTimeHeader, strconv.FormatInt(g.o.Now().UnixMilli(), 10))
}

func unknownMethod(any, grpc.ServerStream) error {
	return status.Error(codes.Unimplemented, "Unknown method")
}

// rateLimited answers a call of a source whose calls were refused too often.
func rateLimited(wait time.Duration) error {
	return newStatus(codes.ResourceExhausted, fault.RateLimited, "Too many refused calls; retry later", retryAfter(wait)).Err()
}
