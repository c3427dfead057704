"""A stand-in for SGLang that a bare Python runs: real HTTP, real parts by the patched tree's own protocol module."""

LAUNCH_SERVER = """
import argparse, array, http.server, json, math, os, subprocess, threading, time
from sglang.srt.auxtap import protocol

parser = argparse.ArgumentParser()
for option in ("--model-path", "--host", "--port"):
    parser.add_argument(option)
known, _ = parser.parse_known_args()
HIDDEN = 8
spool = os.environ["AUXTAP_SPOOL"]
layers = tuple(int(layer) for layer in os.environ["AUXTAP_LAYERS"].split(","))
helper = subprocess.Popen(["sleep", "1000"])
writer = protocol.RankDescriptor(
    host="fake", pid=os.getpid(), nonce=os.urandom(8).hex(), pp_rank=0, pp_size=1, dp_rank=0, dp_size=1, tp_size=1,
    layers=layers, all_layers=layers, has_final=True, num_layers=8, hidden_size=HIDDEN, vocab_size=200,
    context_length=512, dtype="F32", model_class="Fake", model_path=known.model_path,
    release=os.environ["AUXTAP_RELEASE"], patch_digest=os.environ["AUXTAP_PATCH_DIGEST"],
    source_digest=os.environ["AUXTAP_SOURCE_DIGEST"],
)

def publish(name, data):
    with open(f"{spool}/.{name}.tmp", "wb") as file:
        file.write(data)
    os.rename(f"{spool}/.{name}.tmp", f"{spool}/{name}")

def rows(slot, ids):
    seed = 99 if slot == "final" else int(slot.split(".")[1])
    values = array.array("f", (math.sin(t * 0.37 + c * 1.1 + seed) for t in ids for c in range(HIDDEN)))
    return values.tobytes()

def write_part(rid, ids):
    layout = protocol.part_layout(n_tokens=len(ids), layers=layers, has_final=True, hidden_size=HIDDEN, dtype="F32")
    data = array.array("q", ids).tobytes()
    for slot in layout.slots[1:]:
        data += rows(slot.name, ids)
    digest = protocol.new_digest("sha256")
    digest.update(data)
    metadata = protocol.PartMetadata(str(rid), writer.nonce, 0, 0, "sha256:" + digest.hexdigest())
    header = protocol.encode_header(layout.slots, metadata.to_header())
    publish(str(protocol.PartName(rid, 0, 0, protocol.READY)), header + data)

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *args):
        pass

    def send(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def do_GET(self):
        self.send({"model_path": known.model_path, "max_req_input_len": 500})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rid = protocol.parse_rid(body["rid"])
        time.sleep(float(os.environ.get("FAKE_DELAY_S", "0")))
        if rid is not None:
            write_part(rid, body["input_ids"])
        self.send({"meta_info": {"id": body["rid"], "prompt_tokens": len(body["input_ids"]),
                                 "finish_reason": {"type": "length"}}})

if os.environ.get("FAKE_DEATH"):
    raise RuntimeError(os.environ["FAKE_DEATH"])
name = protocol.descriptor_name("fake", 0, 0)
publish(name, json.dumps(writer.to_json()).encode())
publish(protocol.stats_name(name), json.dumps(protocol.TapStats(nonce=writer.nonce).to_json()).encode())
print("auxtap: armed", flush=True)
http.server.ThreadingHTTPServer((known.host, int(known.port)), Handler).serve_forever()
"""
