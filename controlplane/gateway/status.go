package gateway

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/better-compute/bcd/internal/fault"
)

// errorDomain is the ErrorInfo domain of the control plane's codes.
const errorDomain = "better-compute"

func newStatus(c codes.Code, reason fault.Code, message string, more ...protoadapt.MessageV1) *status.Status {
	s := status.New(c, message)
	details := append([]protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: string(reason), Domain: errorDomain}}, more...)
	full, err := s.WithDetails(details...)
	if err != nil { // only a status OK has none
		return s
	}
	return full
}

func retryAfter(d time.Duration) protoadapt.MessageV1 {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}

// relayed is the error that a daemon gets for an error of a call to JoinService. What JoinService said passes as it is;
// what gRPC says about the connection to it, addresses included, is not the daemon's business.
func (g *Gateway) relayed(method string, err error) error {
	s := status.Convert(err)
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return s.Err()
		}
	}
	switch s.Code() {
	case codes.Canceled:
		return status.Error(codes.Canceled, "Canceled")
	case codes.DeadlineExceeded:
		return status.Error(codes.DeadlineExceeded, "The control plane did not answer in time")
	case codes.Unavailable:
		g.o.Log.Warn("relay call", "method", method, "error", err)
		return status.Error(codes.Unavailable, "The control plane is not available")
	default:
		g.o.Log.Error("relay call", "method", method, "error", err)
		return status.Error(codes.Internal, "The control plane failed")
	}
}
