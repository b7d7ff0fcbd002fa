import letters
from django.db import transaction
from django.http import HttpResponse
from django.urls import path


@transaction.atomic
def sign_up(request):
    to = request.POST["email"]
    # ... save the user ...
    transaction.on_commit(lambda: letters.send_later(to))
    return HttpResponse("we write to you", status=202)


urlpatterns = [path("sign-up", sign_up)]
