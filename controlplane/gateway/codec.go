package gateway

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
)

// requestCodec is the protobuf codec, with a difference: a request that cannot be read is the empty one. So JoinService
// refuses it as it refuses any other, and the caller is charged for it; gRPC's own answer would do neither.
type requestCodec struct{ encoding.CodecV2 }

func newRequestCodec() encoding.CodecV2 { return requestCodec{encoding.GetCodecV2(proto.Name)} }

// Unmarshal implements [encoding.CodecV2].
func (c requestCodec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	switch v.(type) {
	case *daemonv1.ChallengeRequest, *daemonv1.JoinRequest, *daemonv1.RenewRequest:
		if err != nil {
			protobuf.Reset(v.(protobuf.Message))
			return nil
		}
	}
	return err
}
