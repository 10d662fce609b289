"""A client: computes its gradient; the mod sends k numbers of it."""

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from logistic_app.task import compressor, problem
from stepsize_opt.flower import compress_mod
from stepsize_opt.methods import Compressor


def shared(context: Context) -> Compressor:
    return compressor(str(context.run_config["method"]), str(context.run_config["plan"]))


app = ClientApp(mods=[compress_mod(shared)])


@app.train()
def train(message: Message, context: Context) -> Message:
    x = message.content["arrays"]["x"].numpy()
    client = problem(int(context.run_config["clients"])).clients[int(context.node_config["partition-id"])]
    gradient = client.gradient(x[None])[0]
    return Message(RecordDict({"arrays": ArrayRecord({"x": Array(gradient)})}), reply_to=message)
