from pathlib import Path

from toolbus import AgentsGrant, ApiScope, KeyRing, ParticipantToken

agents = AgentsGrant(use_tools=True, call=True, allow=("words",), act_for=("*",))
api = ApiScope(agents=agents, messaging=True, trace=True)
key = KeyRing.load(Path("keys.toml")).signing_key
assert key is not None
print(ParticipantToken(name="agent", room=["main"], api=api).to_jwt(key, ttl_s=900))
